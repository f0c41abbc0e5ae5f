"""Integers drawn exactly: uniform ones, and samples without replacement.

Integer arithmetic on random words, with neither logarithms nor rejection. The usual way to draw slots, the
largest log p + Gumbel noise, has the same law, but logarithms differ in their last bit between backends (and
between CPUs), and then two close slots change positions; it also needs noise for every slot of every row.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.typing import Array, Int

WEIGHT_BITS = 30
"""Weights are integers that sum to some 2**30, so that their running sums fit into int32."""


def words(rng: Array, *shape: int) -> Array:
    """Random uint32 (*shape[:-1], 2, shape[-1]): 64 bits per number, the high and the low ones.

    One row after the other: the generator takes several times the memory of what it gives.
    """
    rngs = jax.random.split(rng, math.prod(shape[:-1]))
    rows = lax.map(lambda rng: jax.random.bits(rng, (2, shape[-1]), jnp.uint32), rngs)
    return rows.reshape(*shape[:-1], 2, shape[-1])


def scaled(words: Array, bound: Array | int) -> Int[Array, "..."]:
    """The integer part of bound * u, where u in [0, 1) is the binary fraction of 64 bits.

    For random words this is uniform over [0, bound) to within 2**-64, and so is the chance of any interval.

    Args:
        words: uint32 (2, ...).
        bound: in [1, 2**31), broadcast against ``words[0]``.
    """
    high, low = words
    bound = jnp.asarray(bound, jnp.uint32)
    lower = high * bound
    middle = lower + _high_product(low, bound)  # wraps; then it is below its summands
    carry = (middle < lower).astype(jnp.uint32)
    return (_high_product(high, bound) + carry).astype(jnp.int32)


def _high_product(a: Array, b: Array) -> Array:
    """The upper 32 bits of the product of uint32, in halves: JAX has no 64-bit integers by default."""
    half, low = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low, b >> half, b & low
    first = a_high * b_low + ((a_low * b_low) >> half)
    second = a_low * b_high + (first & low)
    return a_high * b_high + (first >> half) + (second >> half)


def uniform(rng: Array, rows: int, length: int, bound: int) -> Int[Array, "rows length"]:
    """int32 in [0, bound), each value with probability 1 / bound to within 2**-64.

    One column after the other, as in `words`, whose result would be twice as large as this one.
    """
    rngs = jax.random.split(rng, length)
    return lax.map(lambda rng: scaled(jax.random.bits(rng, (2, rows), jnp.uint32), bound), rngs).T


def successive(words: Array, weights: np.ndarray) -> Int[Array, "rows count"]:
    """Items drawn one after the other without replacement, by weight among those that are left.

    Put the items side by side on a line, each as long as its weight. A draw is a uniform point on the line;
    the item under it is cut out and the line closed up. So given the earlier draws, each item left comes next
    with probability weight / (sum of the weights left), to within 2**-64: successive sampling by definition.

    A row remembers only where it cut its line and how much it cut out: O(rows * count) memory whatever the
    number of items, O(rows * count**2) time.

    Args:
        words: random uint32 (count, 2, rows), with at most as many draws as items.
        weights: positive integers (items,) on the host, their sum below 2**31.

    Returns:
        int32 indices, in the order of drawing.
    """
    sums = np.cumsum(weights, dtype=np.int64)
    ends, starts, sizes = (jnp.asarray(x, jnp.int32) for x in (sums, sums - weights, weights))

    def locate(point: Array) -> tuple[Array, Array, Array]:
        item = jnp.searchsorted(ends, point, side="right").astype(jnp.int32)
        return item, starts[item], sizes[item]

    return _draw(words, int(sums[-1]), locate)


def distinct(words: Array, pool: np.ndarray) -> Int[Array, "rows count"]:
    """Different elements of a pool, each ordered sample equally likely: `successive` with equal weights.

    Args:
        words: random uint32 (count, 2, rows), with at most as many draws as elements.
        pool: integers on the host, all different.
    """
    items = _draw(words, len(pool), lambda point: (point, point, jnp.ones_like(point)))
    return jnp.asarray(pool, jnp.int32)[items]


def _draw(
    words: Array, total: int, locate: Callable[[Array], tuple[Array, Array, Array]]
) -> Int[Array, "rows count"]:
    """Cut items out of lines of length `total`; `locate` gives the item at a point, its start and length."""

    def draw(taken: tuple[Array, Array], scanned: tuple[Array, Array]):
        cuts, lost = taken  # (rows, count) each: a place on the line that is left; zero length where unused
        number, pair = scanned
        point = scaled(pair, total - jnp.sum(lost, axis=1, dtype=jnp.int32))
        before = cuts <= point[:, None]
        skipped = jnp.sum(jnp.where(before, lost, 0), axis=1, dtype=jnp.int32)
        item, start, size = locate(point + skipped)
        cuts = jnp.where(before, cuts, cuts - size[:, None]).at[:, number].set(start - skipped)
        return (cuts, lost.at[:, number].set(size)), item

    count, _, rows = words.shape
    nothing = jnp.zeros((rows, count), jnp.int32)
    _, items = lax.scan(draw, (nothing, nothing), (jnp.arange(count, dtype=jnp.int32), words))
    return items.T


def power_law(slots: int, power: float) -> np.ndarray:
    """Weights of slot g = 0, 1, ... in proportion to (g + 1) ** (power - 1), for `successive`.

    power = 1 is uniform; the papers' 0.01 is close to 1 / (g + 1). Rounding to integers moves a probability
    by some 2**-30.
    """
    logs = (power - 1) * np.log(np.arange(1, slots + 1))
    shares = np.exp(logs - logs.max())
    rounded = np.round(shares / shares.sum() * (1 << WEIGHT_BITS))
    return np.maximum(rounded, 1).astype(np.int64)
