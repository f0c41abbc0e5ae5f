"""Draw initial values of parameters.

The draws are jitted functions with names, so that a model can find them in the traced initialisation of its
layers and make all of them by one program (`based_jax.models.initial`).
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

from based_jax.mixers.named_axes import Initializer
from based_jax.typing import Array

DRAW_NORMAL, DRAW_UNIFORM = "draw_standard_normal", "draw_standard_uniform"
"""Names under which traced programs show the draws."""


@functools.partial(jax.jit, static_argnums=1)
def draw_standard_normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw float32 values from N(0, 1)."""
    return jax.random.normal(key, shape, jnp.float32)


@functools.partial(jax.jit, static_argnums=1)
def draw_standard_uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw float32 values from U(-1, 1)."""
    return jax.random.uniform(key, shape, jnp.float32, -1, 1)


def normal(stddev: float) -> Initializer:
    """Return the initializer N(0, stddev^2)."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float_) -> Array:
        if jax.dtypes.canonicalize_dtype(dtype) != jnp.float32:
            return stddev * jax.random.normal(key, shape, dtype)
        return stddev * cast(Array, draw_standard_normal(key, shape))

    return initializer


def uniform(bound: float) -> Initializer:
    """Return the initializer U(-bound, bound); torch's default for convolutions has bound = fan_in^(-1/2)."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        if jax.dtypes.canonicalize_dtype(dtype) != jnp.float32:
            return jax.random.uniform(key, shape, dtype, -bound, bound)
        return bound * cast(Array, draw_standard_uniform(key, shape))

    return initializer
