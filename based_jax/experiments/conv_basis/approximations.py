"""Scores replaced by few segments of columns, and what that does to the outputs: dense, in float64.

Two choices for a segment with given starts. Its anchor, the segment's first column, is what conv-basis
attention takes: no other score has to be computed. The mean of the segment's columns, lag by lag, is the
closest in the sum of squares; it takes all N^2 scores, and so is no algorithm but a yardstick.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from based_jax.typing import Array, Float, Int

WINDOW = 8
"""Lags T at which recovery compares columns"""
THRESHOLDS = 256
"""Tried for the starts of `recovered_starts`"""


def by_lag(scores: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """Return the lower triangle by lag and column, [l, j] = scores[j + l, j]; 0 below the end of the text."""
    length = len(scores)
    row = np.arange(length)[:, None] + np.arange(length)
    return np.where(row < length, scores[np.minimum(row, length - 1), np.arange(length)], 0)


def anchored(scores: Float[np.ndarray, "N N"], starts: Int[np.ndarray, " k"]) -> Float[np.ndarray, "N N"]:
    """Return the scores with each column replaced by its segment's first."""
    return ops.conv_matrix(by_lag(scores)[:, starts].T, starts)


def averaged(scores: Float[np.ndarray, "N N"], starts: Int[np.ndarray, " k"]) -> Float[np.ndarray, "N N"]:
    """The scores with each diagonal replaced by its mean within a segment: the nearest k-conv matrix."""
    length = len(scores)
    inside = by_lag(np.ones_like(scores))
    sums, counts = (np.add.reduceat(x, starts, axis=1) for x in (by_lag(scores), inside))
    return ops.conv_matrix((sums / np.maximum(counts, 1)).T[:, :length], starts)


def attend(scores: Float[np.ndarray, "N N"], v: Float[np.ndarray, "N V"]) -> Float[np.ndarray, "N V"]:
    """Causal softmax attention with these scores."""
    visible = np.tril(np.ones_like(scores, bool))
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def relative_error(y: np.ndarray, exact: np.ndarray) -> float:
    """In the Frobenius norm."""
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


def equal_starts(length: int, terms: int) -> Int[np.ndarray, " k"]:
    """Segments of equal size."""
    return np.arange(terms) * length // terms


def geometric_starts(length: int, terms: int) -> Int[np.ndarray, " k"]:
    """0, 1, 2, 4, ... if `terms` is log2 N + 1: ratios are equal. Fewer where neighbours are the same."""
    return np.unique([0, *np.rint(np.geomspace(1, max(length / 2, 1), terms - 1)).astype(int)])


def recovered_starts(
    q: Float[np.ndarray, "N K"], k: Float[np.ndarray, "N K"], terms: Sequence[int]
) -> dict[int, Int[np.ndarray, " k"]]:
    """For each number of segments, those of the smallest threshold that makes no more.

    They are found column after column: where no columns are alike, the binary search only ever finds the
    next column. The threshold is one of `THRESHOLDS`, from 0 up in equal steps.
    """
    length = len(q)
    most = 2 * float(np.abs(by_lag(q @ k.T)[:WINDOW]).sum(axis=0).max())
    with jax.enable_x64(True):
        thresholds = jnp.linspace(0.0, most, THRESHOLDS)
        found = np.asarray(_scan(*(jnp.asarray(x)[None, :, None] for x in (q, k)), thresholds))
    distinct = [starts[starts < length] for starts in found]
    return {count: next(starts for starts in distinct if len(starts) <= count) for count in terms}


class Head(NamedTuple):
    """One text's queries, scaled as the scores are to be, keys and values."""

    q: Float[np.ndarray, "N K"]
    k: Float[np.ndarray, "N K"]
    v: Float[np.ndarray, "N V"]


Kernel = Callable[[np.ndarray, np.ndarray], np.ndarray]

UNIFORM = "uniform average"
LINES: Mapping[str, tuple[str, Kernel]] = {
    "equal, anchors": ("equal", anchored),
    "geometric, anchors": ("geometric", anchored),
    "recovered, anchors": ("recovered", anchored),
    "equal, means": ("equal", averaged),
    "recovered, means": ("recovered", averaged),
}
"""Title: where segments start, and what stands for their columns"""


def curves(heads: Sequence[Head], terms: Sequence[int]) -> dict[str, list[tuple[float, float, float]]]:
    """Errors against the number of segments, for each of `LINES`, and of uniform averages.

    Means over the heads, which are of one length: for each title, in the order of `terms`, the segments that
    there really are, the relative error of the outputs, and the largest error of a score.
    """
    each = [_curves(head, terms) for head in heads]
    return {line: np.mean([lines[line] for lines in each], axis=0).tolist() for line in each[0]}


def minimal_terms(scores: Float[np.ndarray, "N N"], tolerance: float) -> int:
    """Segments, the first of them from column 0 on, so that no score of theirs is off by more.

    Found greedily: the first column of a segment, or zeros at the beginning, for as many as it will do.
    """
    scores = np.tril(scores)
    if np.abs(scores).max() <= tolerance:
        return 1
    kernels, sizes = ops.conv_decompose(scores, tolerance)
    return len(kernels) + int(sizes[0] < len(scores))


def toeplitz_share(scores: Float[np.ndarray, "N N"]) -> float:
    """Of the variance of the lower triangle, the share that the mean of each diagonal explains."""
    lower = np.tril_indices(len(scores))
    near = averaged(np.tril(scores), np.zeros(1, int))
    return 1 - float(((scores - near)[lower] ** 2).sum() / (scores[lower].var() * len(lower[0])))


def _curves(head: Head, terms: Sequence[int]) -> dict[str, list[tuple[float, float, float]]]:
    length, scores = len(head.q), np.tril(head.q @ head.k.T)
    exact = attend(scores, head.v)
    recovered = recovered_starts(head.q, head.k, terms)
    made = {
        "equal": [equal_starts(length, count) for count in terms],
        "geometric": [geometric_starts(length, count) for count in terms],
        "recovered": list(recovered.values()),
    }

    def point(segments: int, near: np.ndarray) -> tuple[float, float, float]:
        error = relative_error(attend(near, head.v), exact)
        return segments, error, float(np.abs(near - scores).max())

    found = {
        title: [point(len(starts), kernel(scores, starts)) for starts in made[kind]]
        for title, (kind, kernel) in LINES.items()
    }
    return found | {UNIFORM: [point(0, np.zeros_like(scores))]}


@jax.jit
def _scan(q: Array, k: Array, thresholds: Array) -> Array:
    """Starts for each threshold, (thresholds, N); q and k: (1, N, 1, K)."""
    length = q.shape[1]
    recover = functools.partial(ops.conv_recover, terms=length, width=min(WINDOW, length), search="scan")

    def starts(threshold: Array) -> Array:
        found, _ = recover(q, k, threshold=threshold)
        return found[0, 0]

    return jax.lax.map(starts, thresholds)
