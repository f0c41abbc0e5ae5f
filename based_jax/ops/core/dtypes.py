"""Which dtype sums are kept in, and what dtypes hold."""

from typing import Any, cast

import jax.numpy as jnp


def accumulation_dtype(x: Any) -> Any:
    """float64 stays float64 (references); everything else accumulates in float32."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def finfo(dtype: Any) -> Any:
    """`jnp.finfo`, whose type is partly unknown."""
    return cast(Any, jnp.finfo(dtype))
