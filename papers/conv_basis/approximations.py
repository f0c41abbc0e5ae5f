"""Replace scores by few segments of columns and measure the effect on the outputs: dense, in float64.

There are two choices for a segment with given starts. Its anchor, the segment's first column, is what
conv-basis attention takes: it needs no other scores. The mean of the segment's columns, lag by lag, is the
least-squares choice; it needs all N^2 scores, so it is a reference, not an algorithm.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from based_jax.ops import conv_basis
from based_jax.typing import Array, Float, Int

WINDOW = 8
"""Lags T at which recovery compares columns"""
THRESHOLDS = 256
"""Number of thresholds tried by `recovered_starts`"""


def by_lag(scores: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """Return the lower triangle by lag and column, [l, j] = scores[j + l, j]; 0 below the end of the text."""
    length = len(scores)
    row = np.arange(length)[:, None] + np.arange(length)
    return np.where(row < length, scores[np.minimum(row, length - 1), np.arange(length)], 0)


def anchored(scores: Float[np.ndarray, "N N"], starts: Int[np.ndarray, " k"]) -> Float[np.ndarray, "N N"]:
    """Return the scores with each column replaced by its segment's first."""
    return conv_basis.conv_matrix(by_lag(scores)[:, starts].T, starts)


def averaged(scores: Float[np.ndarray, "N N"], starts: Int[np.ndarray, " k"]) -> Float[np.ndarray, "N N"]:
    """Replace each diagonal by its mean within a segment: the nearest k-conv matrix."""
    length = len(scores)
    inside = by_lag(np.ones_like(scores))
    sums, counts = (np.add.reduceat(x, starts, axis=1) for x in (by_lag(scores), inside))
    return conv_basis.conv_matrix((sums / np.maximum(counts, 1)).T[:, :length], starts)


def attend(scores: Float[np.ndarray, "N N"], v: Float[np.ndarray, "N V"]) -> Float[np.ndarray, "N V"]:
    """Return causal softmax attention with these scores."""
    visible = np.tril(np.ones_like(scores, bool))
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def relative_error(y: np.ndarray, exact: np.ndarray) -> float:
    """Return the relative error in the Frobenius norm."""
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


def equal_starts(length: int, terms: int) -> Int[np.ndarray, " k"]:
    """Return the starts of segments of equal size."""
    return np.arange(terms) * length // terms


def geometric_starts(length: int, terms: int) -> Int[np.ndarray, " k"]:
    """Return starts 0, 1, 2, 4, ... for `terms` = log2 N + 1, with equal ratios; duplicates are dropped."""
    return np.unique([0, *np.rint(np.geomspace(1, max(length / 2, 1), terms - 1)).astype(int)])


def recovered_starts(
    q: Float[np.ndarray, "N K"], k: Float[np.ndarray, "N K"], terms: Sequence[int]
) -> dict[int, Int[np.ndarray, " k"]]:
    """Return for each number of segments the starts of the smallest threshold that makes no more.

    Starts are found column by column: where no columns are alike, the binary search only ever finds the next
    column. The threshold is one of `THRESHOLDS`, spaced equally from 0.
    """
    length = len(q)
    most = 2 * float(np.abs(by_lag(q @ k.T)[:WINDOW]).sum(axis=0).max())
    with jax.enable_x64(True):
        thresholds = jnp.linspace(0.0, most, THRESHOLDS)
        found = np.asarray(_scan(*(jnp.asarray(x)[None, :, None] for x in (q, k)), thresholds))
    distinct = [starts[starts < length] for starts in found]
    return {count: next(starts for starts in distinct if len(starts) <= count) for count in terms}


class Head(NamedTuple):
    """One text's queries (with the scale of the scores), keys and values."""

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
"""Title: positions of the starts, and the replacement of a segment's columns"""


def curves(heads: Sequence[Head], terms: Sequence[int]) -> dict[str, list[tuple[float, float, float]]]:
    """Return errors against the number of segments, for each of `LINES` and for uniform averages.

    They are means over the heads, which have one length: for each title, in the order of `terms`, the actual
    number of segments, the relative error of the outputs, and the largest error of a score.
    """
    each = [_curves(head, terms) for head in heads]
    return {line: np.mean([lines[line] for lines in each], axis=0).tolist() for line in each[0]}


def minimal_terms(scores: Float[np.ndarray, "N N"], tolerance: float) -> int:
    """Return the number of segments, the first from column 0, for scores that err by at most `tolerance`.

    Segments are found greedily: each uses its first column, or zeros for the first segment, as long as it
    can.
    """
    scores = np.tril(scores)
    if np.abs(scores).max() <= tolerance:
        return 1
    kernels, sizes = ops.conv_decompose(scores, tolerance)
    return len(kernels) + int(sizes[0] < len(scores))


def toeplitz_share(scores: Float[np.ndarray, "N N"]) -> float:
    """Return the share of the lower triangle's variance that the means of the diagonals explain."""
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
    """Return starts for each threshold, (thresholds, N); q and k: (1, N, 1, K)."""
    length = q.shape[1]
    how: dict[str, Any] = {"terms": length, "width": min(WINDOW, length), "search": "scan"}

    def starts(threshold: Array) -> Array:
        return conv_basis.conv_recover(q, k, threshold=threshold, **how)[0, 0]

    return jax.lax.map(starts, thresholds)
