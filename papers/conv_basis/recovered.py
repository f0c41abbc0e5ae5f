"""Run the paper's Recover (algorithms 2 and 3) on every text and head of the trained model.

Recover has the numbers k and T, and delta and epsilon: it promises to find a basis whose segments differ by
delta in the sum of their first T lags, if no score is off by more than epsilon <= delta / (5 T), and compares
with delta - 2 T epsilon. Here epsilon is the largest that it allows, and delta T times a gap. All of T and
the gap are tried, so that no result depends on our choice of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.experiments.results import Row
from based_jax.ops import conv_basis
from based_jax.typing import Array, Int
from papers.conv_basis.replaced import Replaced, Texts, errors, softmax, through_segments
from papers.conv_basis.settings import Setting

WIDTHS = (1, 8, 32)
"""Lags T"""
GAPS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""delta / T: by how much segments differ in a score, on average; with 0 every column is a segment"""
SEARCHES = {"binary": "Recover", "scan": "Recover by scan"}
"""The paper's search, and one that compares all columns"""
PER_HEAD = "Recover, best per head"


class Bounds(NamedTuple):
    """delta and epsilon for a gap and T."""

    width: int
    gap: float

    @property
    def delta(self) -> float:
        """Separation of the segments, in the sum over T lags."""
        return self.width * self.gap

    @property
    def epsilon(self) -> float:
        """The largest error of a score that the paper's definition allows."""
        return self.delta / (5 * self.width)

    @property
    def threshold(self) -> float:
        """delta - 2 T epsilon, what algorithm 3 compares with."""
        return self.delta - 2 * self.width * self.epsilon


def recovered(
    q: Array, k: Array, count: Array | int, threshold: Array | float, width: int, search: str = "binary"
) -> Int[Array, "B H k"]:
    """Return the first `count` starts that Recover finds; the others are N.

    Algorithm 2 finds one start after the other, so those for k are the first k of those for more. It allows
    at most N + 1 - T.
    """
    length = q.shape[1]
    terms = length + 1 - width
    starts = conv_basis.conv_recover(q, k, terms=terms, width=width, threshold=threshold, search=search)
    return jnp.where(jnp.arange(terms) < count, starts, length)


def rows(setting: Setting, texts: Texts) -> list[Row]:
    """Return a record per search, T and delta, and one for the best T and delta of each head and text.

    `points` are (k, bits per byte, output error). The records of T and delta also have, with k as large as
    the definition allows: `bases`, the number of segments found before the end of the search's range (mean,
    least and most over texts and heads), and `within`, the share of texts and heads none of whose scores is
    off by more than 2 epsilon, the error that the paper's theorem 4.4 starts from.
    """
    about = {"input": "language model", "length": setting.window, "texts": len(texts.inputs)}
    widths = [width for width in WIDTHS if width < setting.window]
    found: list[Row] = []
    for search, line in SEARCHES.items():
        for width in widths:
            found += [{**about, "line": line, **row} for row in _grid(setting, texts, width, search)]
    best = texts.through(lambda q, k, v, count: _best_per_head(q, k, v, count, widths))
    points = _points(setting.window_terms, best(jnp.asarray(setting.window_terms)))
    return [*found, {**about, "line": PER_HEAD, "points": points}]


def _grid(setting: Setting, texts: Texts, width: int, search: str) -> list[Row]:
    def attend(q: Array, k: Array, v: Array, count: Array, threshold: Array) -> Array:
        return through_segments(q, k, v, recovered(q, k, count, threshold, width, search))

    @jax.jit
    def fit(q: Array, k: Array, threshold: Array) -> tuple[Array, Array]:
        starts = recovered(q, k, q.shape[1], threshold, width, search)
        return (starts < q.shape[1] - width).sum(axis=-1), conv_basis.conv_score_error(q, k, starts)

    replaced = texts.through(attend)
    q, k, _ = texts.qkv
    found = []
    for gap in GAPS:
        bounds = Bounds(width, gap)
        threshold = jnp.float32(bounds.threshold)
        bases, score_errors = (np.asarray(x) for x in fit(q, k, threshold))
        row: dict[str, Any] = {"width": width, "delta": bounds.delta, "epsilon": bounds.epsilon}
        row["bases"] = [float(bases.mean()), int(bases.min()), int(bases.max())]
        row["score_error"] = float(score_errors.mean())
        row["within"] = float((score_errors <= 2 * bounds.epsilon).mean())
        points = _points(setting.window_terms, replaced(jnp.asarray(setting.window_terms), threshold))
        found.append({**row, "points": points})
    return found


def _points(terms: Sequence[int], found: Sequence[Replaced]) -> list[tuple[int, float, float]]:
    return [one.at(count) for count, one in zip(terms, found, strict=True)]


def _best_per_head(q: Array, k: Array, v: Array, count: Array, widths: Sequence[int]) -> Array:
    """Attend with the T and delta whose outputs are nearest to softmax attention's, head by head."""
    exact = softmax(q, k, v)
    best, least = exact, jnp.full((q.shape[0], q.shape[2]), jnp.inf)
    for width in widths:
        thresholds = jnp.asarray([Bounds(width, gap).threshold for gap in GAPS], jnp.float32)

        def attend(threshold: Array, width: int = width) -> Array:
            return through_segments(q, k, v, recovered(q, k, count, threshold, width))

        for y in jax.lax.map(attend, thresholds):
            error = errors(y, exact)
            best = jnp.where((error < least)[:, None, :, None], y, best)
            least = jnp.minimum(error, least)
    return best
