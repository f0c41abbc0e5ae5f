"""Initial values that the papers or the authors' code give, and the statistics of what they draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import mixers
from based_jax.testing import laws
from tests.mixers.built import initial_parameters
from tests.tolerances import FLOAT32, assert_close

WIDTH = 128


def assert_zoologys(params):
    """Its `_init_weights` draws every linear map again, N(0, 0.02), whatever the class had drawn."""
    found = {key: np.std(value["kernel"]) for key, value in params.items() if isinstance(value, dict)}
    # The relative error of a standard deviation over 128^2 draws is 1 / sqrt(2 n) = 0.0055.
    assert found == pytest.approx(dict.fromkeys(found, 0.02), rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["retnet", "rwkv7"])
def test_zoologys_models(name):
    assert_zoologys(initial_parameters(name, d_model=WIDTH))


C = np.arange(WIDTH)
PART, THIRD = C / WIDTH, (C + 1) % 3 - 1
SHARE = C / (WIDTH - 1)


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (
            "rwkv4",
            {"layer": 0, "num_layers": 3},
            {"mix_k": PART, "mix_v": PART, "mix_r": PART**0.5, "decay": -5 + 8 * SHARE**0.7},
        ),
        (
            "rwkv4",
            {"layer": 2, "num_layers": 3},
            {
                **{"mix_k": PART ** (1 / 3), "mix_v": PART ** (1 / 3) + 0.3},
                **{"decay": -5 + 8 * SHARE**2, "bonus": np.log(0.3) + 0.5 * THIRD},
            },
        ),
        (
            "rwkv_channel_mix",
            {"layer": 1, "num_layers": 2},
            {"mix_k": PART**0.5, "mix_r": PART**0.5},
        ),
        (
            "rwkv5",
            {"head_size": 64, "layer": 1, "num_layers": 3},
            {
                "decay": (-6 + 5 * SHARE ** (0.7 + 1.3 * 0.5)).reshape(2, 64),
                "bonus": (0.5 * (1 - SHARE) + 0.1 * THIRD).reshape(2, 64),
                **{"mix_k": PART ** (2 / 3), "mix_v": PART ** (2 / 3) + 0.15},
                **{"mix_r": PART ** (1 / 3), "mix_g": PART ** (1 / 3)},
            },
        ),
    ],
)
def test_rwkv_by_depth(name, options, expected):
    params = initial_parameters(name, d_model=WIDTH, **options)
    assert_zoologys(params)
    for key, values in expected.items():
        assert_close(params[key], values, FLOAT32, key)


@pytest.mark.release
def test_mamba():
    tree = initial_parameters("mamba", d_model=64, d_state=5)
    np.testing.assert_allclose(np.exp(tree["A_log"]), np.broadcast_to(np.arange(1, 6), (128, 5)), rtol=1e-6)
    np.testing.assert_array_equal(tree["D"], 1)
    steps = np.asarray(jax.nn.softplus(tree["dt_bias"]))
    assert steps.min() >= 0.001 - 1e-6
    assert steps.max() <= 0.1 + 1e-6
    assert abs(np.log(steps).mean() - np.log([0.001, 0.1]).mean()) < 0.5
    assert 0.4 < abs(np.asarray(tree["dt_kernel"])).max() <= 4**-0.5  # rank 4
    assert abs(np.asarray(tree["conv_bias"])).max() <= 0.5
    assert abs(tree["in_proj"]["kernel"].std() / 0.02 - 1) < 0.05


@pytest.mark.release
def test_a_model_of_mambas_keeps_torchs_default():
    """Variance 1 / (3 fan_in), and the way back into the stream over sqrt(layers)."""
    tree = initial_parameters("mamba", d_model=64, num_layers=4, init_std=7.0, out_init_std=7.0)
    for name, std in (("in_proj", 192**-0.5), ("x_proj", 384**-0.5), ("out", 384**-0.5 / 2)):
        assert abs(tree[name]["kernel"].std() / std - 1) < 0.05


def test_mamba2():
    """Step sizes log-uniform from 0.001 to 0.1, -A uniform from 1 to 16; torch's weights with num_layers."""
    params = initial_parameters("mamba2", d_model=64, head_dim=2, d_state=2, num_layers=4)
    steps = np.log1p(np.exp(params["dt_bias"]))
    assert 1e-3 * 0.99 <= steps.min() < 3e-3 < 3e-2 < steps.max() <= 0.1 * 1.01
    A = np.exp(params["A_log"])
    assert 1 <= A.min() < 4 < 13 < A.max() <= 16
    assert np.isclose(params["in_proj"]["kernel"].std(), (3 * 64) ** -0.5, rtol=0.1)
    assert np.isclose(params["out"]["kernel"].std(), (3 * 128 * 4) ** -0.5, rtol=0.1)


@pytest.mark.release
def test_h3():
    """The shift starts as its c alone; rates 1/2, frequencies pi n, steps between dt_min and dt_max."""
    params = initial_parameters("h3", d_model=64, d_state=6)
    assert np.array_equal(params["shift_b"], np.eye(1, 6).repeat(64, axis=0))
    assert np.abs(params["shift_c"]).max() <= 6**-0.5
    np.testing.assert_allclose(np.exp(params["log_rate"]), 0.5, rtol=1e-6)
    np.testing.assert_allclose(params["frequency"][3], np.pi * np.arange(3), rtol=1e-6)
    steps = np.exp(params["log_dt"])
    assert 1e-3 <= steps.min() < 3e-3 < 3e-2 < steps.max() <= 0.1
    assert np.array_equal(params["b"][0], [[1, 0]] * 3)


@pytest.mark.slow
def test_rwkv7_learns_to_remove_unless_it_starts_without():
    """At k_k = 0 its gradient is zero, all others learn: why the default is not Zoology's."""
    mixer, x = mixers.make("rwkv7", d_model=WIDTH), laws.inputs(1, 9, WIDTH, 0)
    params = initial_parameters("rwkv7", d_model=WIDTH)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(mixer.apply({"params": params}, x)[0] ** 2)))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient(params)))
    assert not np.any(gradient(params | {"removal": np.zeros_like(params["removal"])})["removal"])
    assert np.all(params["removal"] == np.float32(0.85))


def test_mambas_recurrence_is_float32_in_a_bfloat16_model():
    state = mixers.make("mamba", d_model=8, dtype=jnp.bfloat16).init_state(2)
    assert (state.ssm.h.shape, state.ssm.h.dtype) == ((2, 16, 16), jnp.float32)
    assert (state.conv.inputs.shape, state.conv.inputs.dtype) == ((2, 3, 16), jnp.bfloat16)


@pytest.mark.parametrize("name", ["gated_delta_net", "rwkv4", "rwkv5"])
def test_decays_of_bfloat16_weights_are_exponentiated_in_float32(name):
    mixer, x = mixers.make(name, d_model=8), laws.inputs(1, 64, 8, 0)
    narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), initial_parameters(name, d_model=8))
    wide = jax.tree.map(lambda w: w.astype(jnp.float32), narrow)
    run = jax.jit(lambda params: mixer.apply({"params": params}, x)[0])
    y = run(wide)
    assert_close(run(narrow), y, 1e-5, name)  # float32: other fusions round differently
