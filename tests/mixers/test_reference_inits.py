"""Statistics of the initial projections that the authors' trainers draw, where an option asks for them."""

import jax
import numpy as np
import pytest

from tests.mixers.built import initial_parameters

WIDTH = 128
SAMPLING = 0.03
"""relative error of a standard deviation over 128^2 draws: 1 / sqrt(2 n) is 0.0055"""


def stds(name, **options):
    """Of the kernels, by name, and the other parameters."""
    params = jax.device_get(initial_parameters(name, d_model=WIDTH, **options))
    kernels = {key: np.std(value["kernel"]) for key, value in params.items() if isinstance(value, dict)}
    return kernels, params


def test_retnet():
    """torchscale's `MultiScaleRetention.reset_parameters`, and `deepnorm` of its decoder with 6 layers."""
    found, _ = stds("retnet", num_heads=2, num_layers=6, init_std=1.0, out_init_std=1.0)
    square, wide, deep = (2 / (2 * WIDTH)) ** 0.5, (2 / (3 * WIDTH)) ** 0.5, 48**0.25
    expected = {"q": square, "k": square, "v": wide / deep, "gate": wide}
    expected = {key: value * 2**-2.5 for key, value in expected.items()} | {"out": wide / deep}
    assert found == pytest.approx(expected, rel=SAMPLING)


@pytest.mark.parametrize(
    ("name", "zero", "drawn"),
    [
        ("rwkv4", ["key", "receptance", "out"], ["value"]),
        ("rwkv5", ["out"], ["receptance", "key", "value", "gate"]),
        ("rwkv_channel_mix", ["receptance", "out"], ["key"]),
    ],
)
def test_rwkv(name, zero, drawn):
    """Zeros, and the entries' variance 1 / d of an orthogonal matrix with RWKV's gain for tall ones."""
    options = {"init_std": 1.0, "out_init_std": 1.0, "layer": 1, "num_layers": 4}
    found, params = stds(name, rwkv_init=True, **options)
    expected = dict.fromkeys(zero, 0.0) | dict.fromkeys(drawn, WIDTH**-0.5)
    assert found == pytest.approx(expected, rel=SAMPLING)
    if name == "rwkv5":
        np.testing.assert_allclose(params["norm_scale"], 0.5**0.7, rtol=1e-6)


@pytest.mark.parametrize("name", ["retnet", "rwkv4", "rwkv5", "rwkv7", "rwkv_channel_mix"])
def test_zoologys_models(name):
    """Its `_init_weights` draws every linear map again, N(0, 0.02), whatever the class had drawn."""
    found, _ = stds(name)
    assert found == pytest.approx(dict.fromkeys(found, 0.02), rel=2 * SAMPLING)
