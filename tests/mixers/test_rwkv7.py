"""RWKV-7: gradients at its initial values."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from based_jax.testing import laws
from tests.mixers.built import gradients


@pytest.mark.parametrize("removal_init", [0.85, 0.0])
def test_it_learns_to_remove_unless_it_starts_without(removal_init):
    """At k_k = 0 its gradient is zero, all others learn: why the default is not Zoology's."""
    mixer = mixers.make("rwkv7", d_model=12, removal_init=removal_init)
    tree = nn.meta.unbox(gradients(mixer, laws.inputs(1, 9, 12, 0)))["params"]
    assert np.any(tree.pop("removal")) == bool(removal_init)
    if removal_init:
        assert all(np.any(x) for x in jax.tree.leaves(tree))
