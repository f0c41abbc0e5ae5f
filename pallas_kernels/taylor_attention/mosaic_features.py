"""The features of the Mosaic kernel: 14 slabs of 16 columns, each computed in registers from x (tokens, 16).

    slab i < 8     x_i x_j                  for all 16 j                      8 slabs
    slab 8 .. 11   x_i x_j, x_{i+1} x_j     for j >= 8; i = 8, 10, 12, 14     4 slabs
    slab 12        x_j
    slab 13        1, then zeros

A product of two channels below 8, or of two others, occurs twice, one from each half once. That is 224
columns instead of 288 for all 256 products, and each slab is x times one or two of its own columns. Only the
queries' features carry weights: powers of two, which bfloat16 represents exactly.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.taylor_attention.layout import Layout

KEY_SIZE = 16
HALF = KEY_SIZE // 2
SLABS = 14
COLUMNS = SLABS * KEY_SIZE

ROWS = 64
"""Rows of the moments, those of one product on the tensor cores: the last 64 columns times x."""

SQUARES, SUMS, COUNT = slice(32, 48), 48, 49
"""Rows of the moments: sum x x^T, sum x, and the number of keys in every column. Others are not used."""

Factors = tuple[int | None, int | None]


def columns() -> list[Factors | None]:
    """Return the two channels of each column's product (None for the factor 1); None for a zero column."""
    low, high = range(HALF), range(HALF, KEY_SIZE)
    products = [(i, j) for i in low for j in range(KEY_SIZE)] + [(i, j) for i in high for j in high]
    return [*products, *((j, None) for j in range(KEY_SIZE)), (None, None), *[None] * (KEY_SIZE - 1)]


class Scaled(NamedTuple):
    """x (tokens, 16) with the weights of each kind of slab."""

    low: jax.Array
    """with the weights of slabs 0 to 7"""
    high: jax.Array
    """with the weights of slabs 8 to 11"""
    linear: jax.Array


def weighted(x: jax.Array, column: jax.Array) -> Scaled:
    """Weight queries: phi(q) . phi(k) = 1 + s + s^2 / 2, s = q . k / 4; `column` are the 16 indices."""
    twice = jnp.where(column < HALF, 1 / 32, 1 / 16).astype(x.dtype)
    return Scaled(x * twice, x * jnp.asarray(1 / 32, x.dtype), x * jnp.asarray(1 / 4, x.dtype))


def by_token(x: Scaled, broadcast: Callable[[int, int], jax.Array], constant: jax.Array) -> jax.Array:
    """Return (tokens, 224) features.

    Args:
        broadcast: maps (i, width) to x_i in `width` columns.
        constant: (tokens, 16), the last slab.
    """
    slabs = [x.low * broadcast(i, KEY_SIZE) for i in range(HALF)]
    high = x.high[:, HALF:]
    slabs += [high * broadcast(i, HALF) for i in range(HALF, KEY_SIZE)]
    return jnp.concatenate([*slabs, x.linear, constant], axis=1)


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray, Layout]:
    """Return the portable kernels' row for each column (one past the end: none), and column for each row."""
    layout = Layout(KEY_SIZE, 1)
    rows = {feature: row for row, feature in enumerate(layout.features) if feature is not None}
    to_rows = np.full(COLUMNS, layout.size)
    to_columns = np.full(layout.size, COLUMNS)
    for column, factors in enumerate(columns()):
        if factors is not None:
            i, j = factors
            row = rows[factors if i is None or j is None else (max(i, j), min(i, j))]
            to_rows[column], to_columns[row] = row, column
    return to_rows, to_columns, layout


def from_portable(kv: jax.Array, moments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Convert the portable kernels' state (..., 160, V), (..., 17, 32) to (..., V, 224), (..., 64, 16)."""
    rows, _, layout = _tables()
    mine = jnp.zeros((*moments.shape[:-2], ROWS, KEY_SIZE), moments.dtype)
    mine = mine.at[..., SQUARES, :].set(moments[..., :KEY_SIZE, layout.linear_columns])
    mine = mine.at[..., SUMS, :].set(moments[..., :KEY_SIZE, layout.constant_column])
    mine = mine.at[..., COUNT, :].set(moments[..., KEY_SIZE, :1])
    return _take(kv, rows, -2).swapaxes(-1, -2), mine


def to_portable(kv: jax.Array, moments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Invert `from_portable`; unused numbers of the moments are zeros."""
    _, indices, layout = _tables()
    theirs = jnp.zeros((*moments.shape[:-2], KEY_SIZE + 1, layout.last), moments.dtype)
    theirs = theirs.at[..., :KEY_SIZE, layout.linear_columns].set(moments[..., SQUARES, :])
    theirs = theirs.at[..., :KEY_SIZE, layout.constant_column].set(moments[..., SUMS, :])
    theirs = theirs.at[..., KEY_SIZE, 0].set(moments[..., COUNT, 0])
    return _take(kv, indices, -1).swapaxes(-1, -2), theirs


def _take(x: jax.Array, indices: np.ndarray, axis: int) -> jax.Array:
    """Take `x` at positions along an axis; the position one past the end gives zeros."""
    return jnp.take(x, indices, axis=axis, mode="fill", fill_value=0)
