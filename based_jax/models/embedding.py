"""Embeddings: lookup of rows, initialisers and sinusoidal positions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.mixers.initializers import Initializer, named, normal
from based_jax.models.config import ModelConfig
from based_jax.ops.core.nan_isolation import nan_unless
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
    points = normal(1.0)(key, shape, dtype)
    return points / jnp.sqrt(jnp.sum(jnp.square(points), axis=-1, keepdims=True))


INITIALIZERS: dict[str, Any] = {"normal": normal(1.0), "spherical": _spherical}
"""Initialisers of token embeddings, besides the default, by their names in Zoology's code."""


def table_initializers(config: ModelConfig) -> dict[str, tuple[tuple[int, int], Initializer]]:
    """Return sizes and initializers of a model's matrices outside of its layers, by name."""
    init, size = normal(config.init_std), (config.padded_vocab_size, config.embed_width)
    found = {"embedding": (size, named(INITIALIZERS.get(config.embed_init, init), "vocab", "embed"))}
    if not config.tie_embeddings:
        found["head"] = size, named(init, "vocab", "embed")
    if config.max_positions and config.positions == "learned":
        found["position_embedding"] = (config.max_positions, config.d_model), named(init, None, "embed")
    return found


def make_tables(config: ModelConfig, key: Array) -> dict[str, Any]:
    """Return the initial values of `table_initializers(config)`, boxed with the names of their axes."""
    found = table_initializers(config)
    keys = jax.random.split(key, len(found))
    return {name: init(own, size) for own, (name, (size, init)) in zip(keys, found.items(), strict=True)}
