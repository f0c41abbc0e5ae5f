"""Which dtype sums are kept in."""

from typing import Any

import jax.numpy as jnp


def accumulation_dtype(x: Any) -> Any:
    """float64 stays float64 (references); everything else accumulates in float32."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32
