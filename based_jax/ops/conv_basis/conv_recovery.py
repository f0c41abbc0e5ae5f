"""Find the conv basis of scores q k^T: the starts of segments of equal columns, and their fit.

The lower triangle of the scores is read by column and lag, q[j + l] . k[j]. In a segment s_r <= j < s_{r+1}
each column is approximated by the anchor c_r[l] = q[s_r + l] . k[s_r] (`conv_basis`), so k columns of scores
and a search for the starts replace all N (Gu et al. 2024, "Conv-Basis", algorithms 2 and 3, theorem 4.4).

Scores are q . k without a factor: scale q first. Arrays are (batch, length, heads, dim).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import accumulation_dtype, map_rows, repeat
from based_jax.ops.core.chunks import heads_first
from based_jax.ops.core.op import body, op
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array, expect_choice

Threshold = float | Float[Array, ""]

COLUMNS = 128
"""Columns of scores computed at a time in `conv_score_error`: memory O(128 N) per row and head."""


@op()
def conv_recover(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    *,
    terms: int,
    width: int,
    threshold: Threshold,
    search: str = "binary",
    mask: Bool[Array, "B N"] | None = None,
) -> Int[Array, "B H k"]:
    """Return the starts of the segments of the scores q k^T, without a gradient.

    A column starts a segment if its scores at the first T lags differ from those of the segment's first
    column by `threshold` or more, in the sum of magnitudes. The first start is always 0
    (`conv_basis.conv_exp`).

    "binary" is the paper's: a binary search for each start among the columns after the last one, with
    `binary_probes` probes of T scores. It finds the starts of scores that are eps-close to a (T,
    delta)-non-degenerate basis (`conv_basis.conv_separation`); for others it may miss starts. The end of its
    range, column N - T, is not probed: with fewer segments than `terms`, the starts N - T, N - T + 1, ...
    follow, which are harmless because their anchors are exact.

    "scan" compares every column in turn, in O(N T K) operations. It requires only neighbouring segments to
    differ, and finds a start regardless of later tokens. The last T - 1 columns start no segment.

    "largest" needs no threshold: it takes the `terms` - 1 columns that differ most from the column before, by
    at least `threshold`, which may be 0. Like the paper's search it finds the starts of scores that are
    eps-close to a basis of `terms` terms; for exact scores with fewer terms it adds harmless extra starts. It
    misses a drift of many small steps. The last T - 1 columns are compared at fewer lags.

    All of these read tokens after a start, so a model trained through them sees the future.

    Args:
        q, k: queries, scaled as the scores should be, and keys.
        terms: number of starts, at least 1. If there are more segments, the first ones are found (by
            "largest" those of the largest changes), and each extends to the next start found.
        width: T, from 1 to N. A single lag suffices for exact scores but is the least robust.
        threshold: half the separation is safe; 0 makes each column a segment (except with "largest").
        search: "binary", "scan" or "largest".
        mask: (B, N) booleans, right padding: a row's text ends with its last real token, not at N.

    Returns:
        int32, increasing; N (an empty segment) where there are no more.
    """
    counts = _expect_queries(q, k, mask)
    length = q.shape[1]
    expect(terms >= 1, "terms", terms, "at least 1")
    expect(1 <= width <= length, "width", width, f"1 to N = {length}")
    if not isinstance(threshold, jax.Array):
        expect(threshold >= 0, "threshold", threshold, "at least 0")
    expect_choice("search", search, tuple(SEARCHES))
    dtype = accumulation_dtype(q)
    find = functools.partial(SEARCHES[search], terms=terms, width=width, threshold=threshold)
    starts = _per_head(find)(*(lax.stop_gradient(x).astype(dtype) for x in (q, k)), counts)
    return jnp.where((starts < counts[..., None]) | (starts == 0), starts, length)


@op()
def conv_anchors(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    starts: Int[Array, "B H k"],
    mask: Bool[Array, "B N"] | None = None,
) -> Float[Array, "B H k N"]:
    """Return the columns of the scores q k^T at `starts`, from the diagonal on: q[s + l] . k[s] at lag l.

    0 after the last (real) token, and for starts at N. In float32 (float64 for float64 queries).
    """
    counts = _expect_queries(q, k, mask)
    batch, _, heads, _ = q.shape
    expect_array("starts", starts, (batch, heads, "k"), "integer")
    dtype = accumulation_dtype(q)
    return _per_head(_columns)(q.astype(dtype), k.astype(dtype), counts, starts)


@op()
def conv_score_error(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    starts: Int[Array, "B H k"],
    mask: Bool[Array, "B N"] | None = None,
) -> Float[Array, "B H"]:
    """Return the largest error of the segments' scores, max |q_i . k_j - c_r[i - j]| over j <= i.

    In O(N^2 K) operations, with the memory of `COLUMNS` columns. Softmaxes of scores that differ by at most e
    differ by at most 2 tanh(e / 2) in the sum of magnitudes, and so do outputs over max |v|; two keys attain
    it. The paper's lemma D.4 has 2 (exp(e) - 1).

    Args:
        q, k: queries and keys.
        starts: increasing, the first 0.
        mask: (B, N) booleans, right padding; scores of padding do not count.

    Returns:
        (B, H) in float32 (float64 for float64 queries).
    """
    counts = _expect_queries(q, k, mask)
    length = q.shape[1]
    block = min(COLUMNS, length)
    columns = jnp.pad(jnp.arange(length), (0, -length % block), mode="edge").reshape(-1, block)

    def one(q: Array, k: Array, count: Array, starts: Array, anchors: Array) -> Array:
        def worst(columns: Array) -> Array:
            segment = jnp.searchsorted(starts, columns, side="right") - 1
            inside = jnp.arange(length) < count - columns[:, None]
            return jnp.where(inside, jnp.abs(_columns(q, k, count, columns) - anchors[segment]), 0).max()

        return map_rows(worst, columns).max()

    anchors, dtype = body(conv_anchors)(q, k, starts, mask), accumulation_dtype(q)
    return _per_head(one)(q.astype(dtype), k.astype(dtype), counts, starts, anchors)


def binary_probes(length: int, width: int) -> int:
    """Return the probes of a binary search per start except the first: log2(N - T), rounded up."""
    return max(length - width - 1, 0).bit_length()


def _binary(q: Array, k: Array, count: Array, terms: int, width: int, threshold: Threshold) -> Array:
    """Run algorithms 2 and 3 for one head, q and k: (N, K), of which the first `count` tokens are real."""
    length = len(q)

    def window(j: Array) -> Array:
        return jnp.sum(lax.dynamic_slice_in_dim(q, j, width) * k[j], axis=-1)

    def next_start(start: Array, nothing: None) -> tuple[Array, Array]:
        anchor = window(start)

        def probe(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high) // 2
            found = jnp.abs(window(middle) - anchor).sum() >= threshold
            searching = low < high
            next_low = jnp.where(searching & ~found, middle + 1, low)
            return next_low, jnp.where(searching & found, middle, high)

        low, _ = repeat(binary_probes(length, width), probe, (start + 1, count - width))
        start = jnp.minimum(low, length)
        return start, start

    zero = jnp.int32(0)
    _, starts = lax.scan(next_start, zero, length=terms - 1)
    return jnp.append(zero, starts)


def _scan(q: Array, k: Array, count: Array, terms: int, width: int, threshold: Threshold) -> Array:
    """Compare each column in turn for one head, q, k: (N, K)."""
    length, windows = len(q), _windows(q, k, width)

    def compare(carry: Any, column: Any) -> tuple[Any, Array]:
        start, anchor = carry
        j, window = column
        differs = jnp.abs(window - anchor).sum() >= threshold
        found = differs & (j > start) & (j <= count - width)
        return (jnp.where(found, j, start), jnp.where(found, window, anchor)), found

    columns = (jnp.arange(length, dtype=jnp.int32), windows)
    _, found = lax.scan(compare, (jnp.int32(0), windows[0]), columns)
    (found,) = jnp.nonzero(found, size=terms - 1, fill_value=length)
    return jnp.append(jnp.int32(0), found.astype(jnp.int32))


def _largest(q: Array, k: Array, count: Array, terms: int, width: int, threshold: Threshold) -> Array:
    """Return the columns of the largest changes for one head, q and k: (N, K)."""
    length, windows = len(q), _windows(q, k, width)
    inside = jnp.arange(1, length)[:, None] + jnp.arange(width) < count
    changes = jnp.where(inside, jnp.abs(jnp.diff(windows, axis=0)), 0).sum(axis=-1)
    changes, before = lax.top_k(changes, min(terms - 1, len(changes)))
    starts = jnp.sort(jnp.where(changes >= threshold, before + 1, length)).astype(jnp.int32)
    return jnp.pad(jnp.append(jnp.int32(0), starts), (0, terms - 1 - len(starts)), constant_values=length)


SEARCHES: dict[str, Callable[..., Array]] = {"binary": _binary, "scan": _scan, "largest": _largest}
"""The values of `search`"""


def _windows(q: Array, k: Array, width: int) -> Float[Array, "N T"]:
    """Return the scores of each column at its first T lags; arbitrary values after the end."""

    return map_rows(lambda lag: jnp.sum(jnp.roll(q, -lag, axis=0) * k, axis=-1), jnp.arange(width)).T


def _columns(q: Array, k: Array, count: Array, columns: Array) -> Float[Array, "S N"]:
    """Return q[j + l] . k[j] for each j of `columns`, 0 from token `count` on; q and k: (N, K).

    Full precision: on a GPU the default for float32 is TF32, whose rounding would appear as a poor fit.
    """
    length = len(q)
    scores = jnp.matmul(k[jnp.minimum(columns, length - 1)], q.T, precision=lax.Precision.HIGHEST)
    row = columns[:, None] + jnp.arange(length)
    return jnp.where(row < count, jnp.take_along_axis(scores, jnp.minimum(row, length - 1), axis=1), 0)


def _per_head(function: Callable[..., Array]) -> Callable[..., Array]:
    """Vectorise a function of one head's (N, K) queries and keys, and other arrays, to (B, N, H, K)."""

    def batched(q: Array, k: Array, *others: Array) -> Array:
        return jax.vmap(jax.vmap(function))(heads_first(q), heads_first(k), *others)

    return batched


def _expect_queries(q: Array, k: Array, mask: Array | None) -> Int[Array, "B H"]:
    """Return the number of real tokens of each row, for each of its heads."""
    expect_array("q", q, ("B", "N", "H", "K"), "floating")
    expect_array("k", k, q.shape, "floating")
    batch, length, heads, _ = q.shape
    if mask is None:
        return jnp.full((batch, heads), length, jnp.int32)
    expect_array("mask", mask, (batch, length), "bool")
    return jnp.broadcast_to(mask.sum(axis=1, dtype=jnp.int32)[:, None], (batch, heads))
