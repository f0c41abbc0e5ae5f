"""Conv bases: a lower triangle, of a matrix or of scores q k^T, as a sum of few convolution matrices.

A lower triangle H is read by column and lag, H[j + l, j]. Neighbouring columns that are equal as functions
of the lag l form a segment, and k segments make a k-conv basis (Gu et al. 2024, "Conv-Basis", section 3),
written in two forms:

    H = sum_r conv(b_r, m_r),  N >= m_1 > ... > m_k >= 1        terms: kernels b_r and sizes m_r
    H[j + l, j] = c_r[l]  where  s_r <= j < s_{r+1}             segments: anchors c_r and starts s_r

with c_r = b_1 + ... + b_r and s_r = N - m_r, counted from 0: the anchor c_r is H's own column s_r. Entries
that neither form uses, at lags from m_r on, are 0. The basis of a matrix is found in NumPy float64. That of
scores, q[j + l] . k[j], needs k of their columns and a search for the starts (algorithms 2 and 3, theorem
4.4): q, k are (batch, length, heads, dim), and the scores have no factor: scale q first.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from based_jax.ops.core.arrays import accumulation_dtype, map_rows, repeat
from based_jax.ops.core.chunks import heads_first
from based_jax.ops.core.op import op
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array, expect_choice

Matrix = NDArray[Any]
Threshold = float | Float[Array, ""]

COLUMNS = 128
"""Columns of scores computed at a time in `conv_score_error`: memory O(128 N) per row and head."""


def conv_decompose(matrix: Any, tolerance: float = 0.0) -> tuple[Matrix, Matrix]:
    """Return the conv basis of a matrix, found column by column (lemma D.1).

    A term begins at each column that differs from the prediction of the terms so far. With `tolerance` 0 no
    basis has fewer terms: there is one per column j with H[j:, j] != H[j-1:N-1, j-1].

    Args:
        matrix: (N, N), lower-triangular and not 0.
        tolerance: a column whose entries differ by at most this joins the segment before it.

    Returns:
        kernels (k, N) and sizes (k,), decreasing. No entry of sum_r conv(b_r, m_r), which is
        ``conv_matrix(np.cumsum(kernels, 0), N - sizes)``, differs from the matrix by more than `tolerance`,
        rounding aside.

    Raises:
        ValueError: not square, not finite, an entry above the diagonal, or nothing to decompose.
    """
    matrix = np.asarray(matrix, np.float64)
    expect_array("matrix", matrix, ("N", matrix.shape[0] if matrix.ndim else "N"))
    strange = int(np.count_nonzero(~np.isfinite(matrix)))
    expect(strange == 0, "entries of matrix that are not finite", strange, "0")
    above = float(np.abs(np.triu(matrix, 1)).max())
    expect(above == 0, "max |matrix| above the diagonal", above, "0, a lower-triangular matrix")
    expect(tolerance >= 0, "tolerance", tolerance, "at least 0")
    length = len(matrix)
    anchors: list[Matrix] = []
    sizes: list[int] = []
    anchor = np.zeros(length)
    for j in range(length):
        size = length - j
        if np.abs(matrix[j:, j] - anchor[:size]).max() > tolerance:
            anchor = np.append(matrix[j:, j], np.zeros(j))
            anchors.append(anchor)
            sizes.append(size)
    expect(len(sizes) > 0, "max |matrix|", float(np.abs(matrix).max()), f"more than tolerance = {tolerance}")
    kernels = np.diff(np.stack(anchors), axis=0, prepend=0)
    return np.where(np.arange(length) < np.array(sizes)[:, None], kernels, 0), np.array(sizes)


def conv_matrix(anchors: Any, starts: Any) -> Matrix:
    """Return the lower-triangular matrix H[j + l, j] = c_r[l] of these segments, (N, N); 0 before the first.

    Args:
        anchors: (k, N); entries from lag N - s_r on are ignored.
        starts: (k,) integers, increasing; segments that start at N (`conv_recover`) are empty.
    """
    anchors, starts = np.asarray(anchors, np.float64), np.asarray(starts)
    expect_array("anchors", anchors, ("k", "N"))
    terms, length = len(anchors), len(anchors.T)
    expect_array("starts", starts, (terms,), "integer")
    rising = (np.diff(starts) > 0) | (starts[1:] == length)
    inside = starts[0] >= 0 and starts[-1] <= length
    expect(bool(inside and rising.all()), "starts", starts.tolist(), f"increasing from 0 or more to {length}")
    segment = np.searchsorted(starts, np.arange(length), side="right") - 1
    lag = np.arange(length)[:, None] - np.arange(length)
    return np.where((lag >= 0) & (segment >= 0), anchors[segment, np.maximum(lag, 0)], 0)


def conv_separation(kernels: Any, sizes: Any, width: int) -> float:
    """Return the largest delta for which a basis is (T, delta)-non-degenerate, T = `width` (section 4).

    Over the first T lags, the anchor of each segment differs by at least delta, in the sum of magnitudes,
    from the anchor of every earlier one, and from 0. The probes of a binary search for the next start are
    then monotone. Scores may have errors of eps <= delta / (5 T), which makes them eps-close to the basis; a
    threshold from 2 T eps to delta - 2 T eps, such as delta / 2, then finds every start. At delta itself the
    result depends on rounding.

    Args:
        kernels, sizes: terms, as from `conv_decompose`.
        width: T, from 1 to the smallest size.
    """
    kernels, sizes = np.asarray(kernels, np.float64), np.asarray(sizes)
    expect_array("kernels", kernels, ("k", "N"))
    expect_array("sizes", sizes, (len(kernels),), "integer")
    falling = bool((np.diff(sizes) < 0).all() and sizes[-1] >= 1 and sizes[0] <= kernels.shape[1])
    expect(falling, "sizes", sizes.tolist(), f"N = {kernels.shape[1]} >= m_1 > ... > m_k >= 1")
    expect(1 <= width <= sizes[-1], "width", width, f"1 to {sizes[-1]}, the smallest of sizes")
    anchors = np.cumsum(kernels[:, :width], axis=0)
    earlier = np.concatenate([np.zeros((1, width)), anchors])
    return min(float(np.abs(c - earlier[: r + 1]).sum(axis=1).min()) for r, c in enumerate(anchors))


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
    column by `threshold` or more, in the sum of magnitudes. The first start is always 0.

    "binary" is the paper's: a binary search for each start among the columns after the last one, with
    `binary_probes` probes of T scores. It finds the starts of scores that are eps-close to a (T,
    delta)-non-degenerate basis (`conv_separation`); for others it may miss starts. The end of its
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
    batch, length, heads, _ = q.shape
    expect_array("starts", starts, (batch, heads, "k"), "integer")
    block = min(COLUMNS, length)
    columns = jnp.pad(jnp.arange(length), (0, -length % block), mode="edge").reshape(-1, block)

    def one(q: Array, k: Array, count: Array, starts: Array) -> Array:
        anchors = _columns(q, k, count, starts)

        def worst(columns: Array) -> Array:
            segment = jnp.searchsorted(starts, columns, side="right") - 1
            inside = jnp.arange(length) < count - columns[:, None]
            return jnp.where(inside, jnp.abs(_columns(q, k, count, columns) - anchors[segment]), 0).max()

        return map_rows(worst, columns).max()

    dtype = accumulation_dtype(q)
    return _per_head(one)(q.astype(dtype), k.astype(dtype), counts, starts)


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
