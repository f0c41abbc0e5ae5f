"""States before the first token: zeros, which the laws take for granted."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from tests.arrays import blank

STATES = {
    "conv_attention": lambda: ops.init_conv_attention_state(2, 5, 3, 2, 4, 3),
    "diagonal_scan": lambda: ops.init_diagonal_scan_state(2, (3, 4)),
    "diagonal_ssm": lambda: ops.init_diagonal_ssm_state(2, 2, 3, 4),
    "kv_cache": lambda: ops.init_kv_cache(2, 5, 2, 3, 4, jnp.bfloat16),
    "linear_attention": lambda: ops.init_linear_attention_state(2, 2, 3, 4),
    "linear_hyper": lambda: ops.init_linear_hyper_state(2, 1, 3, 2, 2, normalize="sum"),
    "linear_recurrence": lambda: ops.init_linear_recurrence_state(2, 2, 3, 4),
    "long_conv": lambda: ops.init_long_conv_state(2, 5, 3),
    "short_conv": lambda: ops.init_short_conv_state(2, 3, 4, jnp.bfloat16),
    "stream": lambda: ops.init_stream(2),
    "taylor": lambda: ops.init_taylor_state(2, 2, 3, 4),
    "token_shift": lambda: ops.init_token_shift_state(2, 3),
}


def test_they_are_zeros():
    def make():
        return {name: state() for name, state in STATES.items()}

    chex.assert_trees_all_equal(jax.jit(make)(), blank(make))


def test_an_average_of_nothing_has_no_weight():
    """Its exponent is below every key."""
    state = jax.jit(lambda: ops.init_wkv_state(2, 3))()
    assert not np.any(state.numerator)
    assert not np.any(state.denominator)
    np.testing.assert_array_equal(state.exponent, np.full((2, 3), -1e38, np.float32))
