"""Dtypes of accumulators, and their limits."""

from typing import Any, cast

import jax.numpy as jnp


def accumulation_dtype(x: Any) -> Any:
    """Return the dtype of sums over x: float64 for float64 (references), else float32."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def finfo(dtype: Any) -> Any:
    """Return `jnp.finfo`, whose type is partly unknown."""
    return cast(Any, jnp.finfo(dtype))
