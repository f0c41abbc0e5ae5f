"""Fixtures' metas and state dicts: unknown modules, checked tensors, the inverse (numbers: tests/parity)."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import mixers
from based_jax.convert import from_torch, to_torch
from tests.arrays import normals
from tests.tolerances import assert_close

META = {
    "module": "based.models.mixers.convolution.BaseConv",
    "d_model": 4,
    "kernel_size": 2,
    "expand_proj": 4,
}


def test_unknown_module():
    with pytest.raises(ValueError, match=r"module = 'some\.Thing': expected one of .*BaseConv"):
        from_torch({"module": "some.Thing"}, {})


def test_names_match_whole_words():
    with pytest.raises(ValueError, match="module ="):
        from_torch({"module": "zoology.mixers.based.BasedBeyond"}, {})


def test_tensors_are_checked():
    with pytest.raises(ValueError, match=r"5 missing: .* 1 unexpected: weight"):
        from_torch(META, {"weight": np.ones(3, np.float32)})


def test_inverse():
    module = mixers.make("gated_conv", d_model=4, kernel_size=2)
    boxed = normals(module.init, jnp.zeros((1, 1, 4)))
    tensors = to_torch(META, boxed)
    same, params = from_torch(META, tensors)
    assert same == module
    assert_close(params, nn.meta.unbox(boxed), 0.0)
