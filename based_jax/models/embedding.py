"""Embeddings: lookup of rows, initialisers and sinusoidal positions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax.ops.core.not_numbers import nan_unless
from based_jax.typing import Array, Float, Int


def rows(
    table: Float[Array, "rows D"], index: Int[Array, "..."], count: int | None = None
) -> Float[Array, "... D"]:
    """Return the rows with these indices, NaN outside [0, count).

    `jnp.take` alone would wrap negative indices.
    """
    count = len(table) if count is None else count
    exists = (index >= 0) & (index < count)
    return nan_unless(exists[..., None], jnp.take(table, jnp.where(exists, index, 0), axis=0, mode="clip"))


def sinusoids(count: int, width: int, dtype: Any) -> Float[Array, "positions D"]:
    """Return sin(p w_i) and cos(p w_i) in turn, w_i = 10000^(-2 i / D) (Vaswani et al. 2017, section 3.5)."""
    angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(count, -1)
    return jnp.asarray(table[:, :width], dtype)


def _spherical(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    points = jax.random.normal(key, shape, dtype)
    return points / jnp.sqrt(jnp.sum(jnp.square(points), axis=-1, keepdims=True))


INITIALIZERS: dict[str, Any] = {"normal": nn.initializers.normal(1.0), "spherical": _spherical}
"""Initialisers of token embeddings, besides the default, by their names in Zoology's code."""
