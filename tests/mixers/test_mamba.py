"""Mamba: initial values, and what keeps float32 (numbers: tests/parity)."""

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import mixers
from tests.mixers.built import initial_parameters


def test_initial_values_are_the_papers():
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


def test_a_model_of_mambas_keeps_torchs_default():
    """Variance 1 / (3 fan_in), and the way back into the stream over sqrt(layers)."""
    tree = initial_parameters("mamba", d_model=64, num_layers=4, init_std=7.0, out_init_std=7.0)
    for name, std in (("in_proj", 192**-0.5), ("x_proj", 384**-0.5), ("out", 384**-0.5 / 2)):
        assert abs(tree[name]["kernel"].std() / std - 1) < 0.05


def test_the_recurrence_is_float32_in_a_bfloat16_model():
    state = mixers.make("mamba", d_model=8, dtype=jnp.bfloat16).init_state(2)
    assert (state.ssm.h.shape, state.ssm.h.dtype) == ((2, 16, 16), jnp.float32)
    assert (state.conv.inputs.shape, state.conv.inputs.dtype) == ((2, 3, 16), jnp.bfloat16)
