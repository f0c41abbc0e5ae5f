"""Draw integers exactly: uniformly, and as samples without replacement.

Uses integer arithmetic on random words, without logarithms or rejection. The usual way to draw slots, the
largest log p + Gumbel noise, has the same distribution, but logarithms differ in their last bit between
backends (and CPUs), which can swap two close slots; it also needs noise for every slot of every row.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.typing import Array, Bool, Int

WEIGHT_BITS = 30
"""Weights are integers that sum to about 2**30, so that their cumulative sums fit in int32."""


def words(rng: Array, *shape: int) -> Array:
    """Draw random uint32 (*shape[:-1], 2, shape[-1]): the high and low halves of 64 bits per number.

    Draws one row after the other, as the generator takes several times the memory of its output.
    """
    rngs = jax.random.split(rng, math.prod(shape[:-1]))
    rows = lax.map(lambda rng: jax.random.bits(rng, (2, shape[-1]), jnp.uint32), rngs)
    return rows.reshape(*shape[:-1], 2, shape[-1])


def scaled(words: Array, bound: Array | int) -> Int[Array, "..."]:
    """Return the integer part of bound * u, where u in [0, 1) is the binary fraction of 64 bits.

    For random words this is uniform over [0, bound): every interval has its probability to within 2**-64.

    Args:
        words: uint32 (2, ...).
        bound: in [1, 2**31), broadcast against ``words[0]``.
    """
    high, low = words
    bound = jnp.asarray(bound, jnp.uint32)
    lower = high * bound
    middle = lower + _high_product(low, bound)  # may wrap around; then it is below its summands
    carry = (middle < lower).astype(jnp.uint32)
    return (_high_product(high, bound) + carry).astype(jnp.int32)


def _high_product(a: Array, b: Array) -> Array:
    """Return the upper 32 bits of a product of uint32, via halves: JAX has no 64-bit integers by default."""
    half, low = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low, b >> half, b & low
    first = a_high * b_low + ((a_low * b_low) >> half)
    second = a_low * b_high + (first & low)
    return a_high * b_high + (first >> half) + (second >> half)


def uniform(rng: Array, rows: int, length: int, bound: int) -> Int[Array, "rows length"]:
    """Draw int32 in [0, bound), each value with probability 1 / bound to within 2**-64.

    Draws one column after the other, as the result of `words` would be twice as large as this one.
    """
    rngs = jax.random.split(rng, length)
    return lax.map(lambda rng: scaled(jax.random.bits(rng, (2, rows), jnp.uint32), bound), rngs).T


def one_of(rng: Array, candidates: Bool[Array, "n count"]) -> Int[Array, "n 1"]:
    """Draw the index of one of each row's candidates, all equally likely; 0 if it has none."""
    ranks = jnp.cumsum(candidates, axis=1, dtype=jnp.int32)
    words = jax.random.bits(rng, (2, len(candidates)), jnp.uint32)
    drawn = scaled(words, jnp.maximum(ranks[:, -1], 1))
    return jnp.argmax(ranks > drawn[:, None], axis=1, keepdims=True).astype(jnp.int32)


def successive(words: Array, weights: np.ndarray) -> Int[Array, "rows count"]:
    """Draw items one after the other without replacement, by weight among the remaining ones.

    Put the items side by side on a line, each as long as its weight. A draw is a uniform point on the line;
    the item under it is cut out and the line closed up. So each remaining item comes next with probability
    weight / (sum of the remaining weights), to within 2**-64. A row stores only the positions and lengths of
    its cuts: O(rows * count) memory whatever the number of items, O(rows * count**2) time.

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
    """Draw different elements of a pool, each ordered sample equally likely: `successive` with equal weights.

    Args:
        words: random uint32 (count, 2, rows), with at most as many draws as elements.
        pool: integers on the host, all different.
    """
    items = _draw(words, len(pool), lambda point: (point, point, jnp.ones_like(point)))
    return jnp.asarray(pool, jnp.int32)[items]


def _draw(
    words: Array, total: int, locate: Callable[[Array], tuple[Array, Array, Array]]
) -> Int[Array, "rows count"]:
    """Cut items out of lines of length `total`; `locate` returns a point's item, its start and length."""

    def draw(taken: tuple[Array, Array], scanned: tuple[Array, Array]):
        cuts, lost = taken  # (rows, count) each: positions on the remaining line, lengths (zero if unused)
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
    """Return weights of slots g = 0, 1, ..., proportional to (g + 1) ** (power - 1), for `successive`.

    power = 1 is uniform; the papers' 0.01 is close to 1 / (g + 1). Rounding to integers changes a probability
    by about 2**-30.
    """
    logs = (power - 1) * np.log(np.arange(1, slots + 1))
    shares = np.exp(logs - logs.max())
    rounded = np.round(shares / shares.sum() * (1 << WEIGHT_BITS))
    return np.maximum(rounded, 1).astype(np.int64)
