"""RWKV-4 and its channel mix: initial values by depth (numbers: tests/parity)."""

import numpy as np

from tests.mixers.built import initial_parameters


def test_the_first_and_the_last_layer():
    """Spec of Zoology 3.9."""
    channel = np.arange(6)
    first, last = (initial_parameters("rwkv4", d_model=6, layer=layer, num_layers=3) for layer in (0, 2))
    np.testing.assert_allclose(first["mix_k"], channel / 6, rtol=1e-6)
    np.testing.assert_allclose(first["mix_v"], channel / 6, rtol=1e-6)
    np.testing.assert_allclose(first["mix_r"], (channel / 6) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(first["decay"], -5 + 8 * (channel / 5) ** 0.7, rtol=1e-6)
    np.testing.assert_allclose(last["mix_k"], (channel / 6) ** (1 / 3), rtol=1e-6)
    np.testing.assert_allclose(last["mix_v"], (channel / 6) ** (1 / 3) + 0.3, rtol=1e-6)
    np.testing.assert_allclose(last["decay"], -5 + 8 * (channel / 5) ** 2, rtol=1e-6)
    np.testing.assert_allclose(last["bonus"], np.log(0.3) + 0.5 * np.array([0, 1, -1, 0, 1, -1]), rtol=1e-6)
    half = initial_parameters("rwkv_channel_mix", d_model=6, layer=1, num_layers=2)
    for name in ("mix_k", "mix_r"):
        np.testing.assert_allclose(half[name], (channel / 6) ** 0.5, rtol=1e-6)
