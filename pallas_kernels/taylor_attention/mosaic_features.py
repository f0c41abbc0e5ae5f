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
from typing import Any, NamedTuple

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


class Weights(NamedTuple):
    """Factors of the queries' features: phi(q) . phi(k) = 1 + s + s^2 / 2, s = q . k / 4."""

    low: float = 1 / 32
    """of x_i x_j, i and j < 8, which occur twice"""
    cross: float = 1 / 16
    """of x_i x_j, i < 8 <= j"""
    high: float = 1 / 32
    linear: float = 1 / 4


NO_WEIGHTS = Weights(1, 1, 1, 1)


def weighted(x: jax.Array, column: jax.Array, weights: Weights) -> Scaled:
    """Weight queries, keys with `NO_WEIGHTS`; `column` are the 16 indices."""
    if weights == NO_WEIGHTS:
        return Scaled(x, x, x)
    low = jnp.where(column < HALF, weights.low, weights.cross).astype(x.dtype)
    return Scaled(x * low, x * jnp.asarray(weights.high, x.dtype), x * jnp.asarray(weights.linear, x.dtype))


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


STRIP = 4 * KEY_SIZE
"""Columns of a strip of the features' gradient: 4 slabs. The three strips are the products of channels."""

STRIPS = 3
LINEAR = STRIPS * STRIP
"""The first column of slab 12."""


def first_factors(strip: int, row: jax.Array, column: jax.Array) -> jax.Array:
    """Return (64, 16), 1 where channel `column` is the first factor, x_i, of the strip's column `row`."""
    width = KEY_SIZE if strip < 2 else HALF
    return jnp.where(row // width + strip * (STRIP // KEY_SIZE) == column, 1.0, 0.0)


def gradient_shares(strip: int, gradient: jax.Array, x: Scaled) -> jax.Array:
    """Return (tokens, 64) gradients of the first factors, one for each column of the strip.

    Args:
        gradient: (tokens, 64) gradient of the strip's features.
        x: as for `by_token`.
    """
    if strip < 2:
        return jnp.concatenate([slab * x.low for slab in _slabs(gradient)], axis=1)
    high = jnp.concatenate([x.high[:, HALF:]] * 2, axis=1)
    return jnp.concatenate([slab * high for slab in _slabs(gradient)], axis=1)


def gradient_sums(strip: int, gradient: jax.Array, broadcast: Callable[[int, int], jax.Array]) -> jax.Array:
    """Return the gradient of the second factors without weights, (tokens, 16), of the last strip (tokens, 8).

    Arguments as for `gradient_shares` and `by_token`.
    """
    sums: Any = 0
    for number, slab in enumerate(_slabs(gradient)):
        if strip < 2:
            sums += slab * broadcast(4 * strip + number, KEY_SIZE)
        else:
            for half, part in enumerate((slab[:, :HALF], slab[:, HALF:])):
                sums += part * broadcast(HALF + 2 * number + half, HALF)
    return sums


def _slabs(gradient: jax.Array) -> list[jax.Array]:
    return [gradient[:, i : i + KEY_SIZE] for i in range(0, STRIP, KEY_SIZE)]


def weighted_gradient(low: jax.Array, high: jax.Array, linear: jax.Array, weights: Weights) -> jax.Array:
    """Return (tokens, 16) from `gradient_sums` of slabs 0 to 7 and 8 to 11, and the gradient of slab 12."""
    first = low[:, :HALF] * weights.low
    second = low[:, HALF:] * weights.cross + high * weights.high
    return jnp.concatenate([first, second], axis=1) + linear * weights.linear


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


def gradient_from_portable(kv: jax.Array, moments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Convert sums over queries as `from_portable`; they carry weights, and those of the moments differ."""
    kv, moments = from_portable(kv, moments)
    return kv * _multiplicity(), moments * _MOMENTS


def gradient_to_portable(kv: jax.Array, moments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Invert `gradient_from_portable`."""
    return to_portable(kv / _multiplicity(), moments / _MOMENTS)


_MOMENTS = np.where((np.arange(ROWS) >= SQUARES.start) & (np.arange(ROWS) <= SUMS), 4, 1)[:, None]


@functools.cache
def _multiplicity() -> np.ndarray:
    """Return (224,), the share of each column in the sum of the columns with the same product."""
    names = [None if f is None or None in f else tuple(sorted(map(str, f))) for f in columns()]
    return np.array([1.0 if name is None else 1 / names.count(name) for name in names], np.float32)


def _take(x: jax.Array, indices: np.ndarray, axis: int) -> jax.Array:
    """Take `x` at positions along an axis; the position one past the end gives zeros."""
    return jnp.take(x, indices, axis=axis, mode="fill", fill_value=0)
