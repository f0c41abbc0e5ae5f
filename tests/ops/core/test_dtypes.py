"""Sums are kept in float32, and in float64 for the references."""

import jax
import jax.numpy as jnp
import pytest

from based_jax.ops.core.dtypes import accumulation_dtype


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_at_least_float32(dtype):
    assert accumulation_dtype(jnp.ones(1, dtype)) == jnp.float32


def test_float64_stays(x64):
    assert accumulation_dtype(jnp.ones(1, jnp.float64)) == jnp.float64
    assert jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64
