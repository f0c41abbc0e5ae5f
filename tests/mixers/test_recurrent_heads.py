"""Heads of linear recurrences: DeltaNet, Gated DeltaNet and GLA."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from based_jax.convert import from_torch, to_torch
from tests.arrays import normals
from tests.mixers.built import gradients


def test_keys_that_sum_to_one_may_be_empty():
    """A relu can leave a token without any key: no 0 / 0."""
    mixer = mixers.make("delta_net", d_model=4, qk_norm="sum", qk_activation="relu")
    chex.assert_tree_all_finite(gradients(mixer, np.zeros((1, 3, 4), np.float32)))


def test_the_unused_parameter():
    """Dropped on the way here, zeros on the way back; required, as torch's strict loading would."""
    meta = {"module": "zoology.mixers.gated_delta_net.GatedDeltaNet", "d_model": 8, "num_heads": 2}
    module = mixers.make("gated_delta_net", d_model=8, num_heads=2)
    params = normals(module.init, jnp.zeros((1, 3, 8)))
    tensors = to_torch(meta, jax.device_get(params))
    assert not np.any(tensors["D"])
    same, back = from_torch(meta, tensors | {"D": np.ones(2, np.float32)})
    assert same == module
    assert jax.tree.all(
        jax.tree.map(np.array_equal, dict(back), jax.tree.map(np.asarray, nn.meta.unbox(params)))
    )
    with pytest.raises(ValueError, match="D"):
        from_torch(meta, {name: x for name, x in tensors.items() if name != "D"})
