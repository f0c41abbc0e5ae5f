"""RWKV-4: initial values by depth, and options (numbers: tests/parity)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers

NAMES = ("rwkv4", "rwkv_channel_mix")


def initial(name: str, **options) -> dict:
    mixer = mixers.make(name, d_model=6, **options)
    return nn.meta.unbox(jax.jit(mixer.init)(jax.random.key(0), jnp.zeros((1, 1, 6))))["params"]


def test_the_first_and_the_last_layer():
    """Spec of Zoology 3.9."""
    channel = np.arange(6)
    first, last = (initial("rwkv4", layer=layer, num_layers=3) for layer in (0, 2))
    np.testing.assert_allclose(first["mix_k"], channel / 6, rtol=1e-6)
    np.testing.assert_allclose(first["mix_v"], channel / 6, rtol=1e-6)
    np.testing.assert_allclose(first["mix_r"], (channel / 6) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(first["decay"], -5 + 8 * (channel / 5) ** 0.7, rtol=1e-6)
    np.testing.assert_allclose(last["mix_k"], (channel / 6) ** (1 / 3), rtol=1e-6)
    np.testing.assert_allclose(last["mix_v"], (channel / 6) ** (1 / 3) + 0.3, rtol=1e-6)
    np.testing.assert_allclose(last["decay"], -5 + 8 * (channel / 5) ** 2, rtol=1e-6)
    np.testing.assert_allclose(last["bonus"], np.log(0.3) + 0.5 * np.array([0, 1, -1, 0, 1, -1]), rtol=1e-6)
    half = initial("rwkv_channel_mix", layer=1, num_layers=2)
    for name in ("mix_k", "mix_r"):
        np.testing.assert_allclose(half[name], (channel / 6) ** 0.5, rtol=1e-6)


def test_state_sizes():
    """The last token, and two sums with an exponent."""
    assert [mixers.info(name).state_size(64, 9) for name in NAMES] == [4 * 64, 64]


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_that_the_model_does_not_have(name):
    with pytest.raises(ValueError, match="layer = 3: expected 0 to 2"):
        initial(name, layer=3, num_layers=3)
