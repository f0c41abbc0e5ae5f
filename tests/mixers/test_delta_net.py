"""DeltaNet: keys that sum to one."""

import chex
import numpy as np

from based_jax import mixers
from tests.mixers.built import gradients


def test_keys_that_sum_to_one_may_be_empty():
    """A relu can leave a token without any key: no 0 / 0."""
    mixer = mixers.make("delta_net", d_model=4, qk_norm="sum", qk_activation="relu")
    chex.assert_tree_all_finite(gradients(mixer, np.zeros((1, 3, 4), np.float32)))
