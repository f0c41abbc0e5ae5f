"""Compute recall against the size of the state, bound and measured, for a figure next to Based's figure 2.

Three lines are independent of training: the bound of theorem F.3 (`recall_bound`), a table of values that
fills its bits, and a linear state of random keys in float32 (`capacity`). The points are trained models, ours
or the paper's. All are means over the tests of a study's scale, each with its number of pairs.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from based_jax.experiments.job import DATA
from based_jax.experiments.mqar_tradeoff import published_points
from based_jax.experiments.results import Results, best, lines, published, state_bytes
from based_jax.files import read_json
from based_jax.plot import Line
from papers.based.bounds.capacity import expected_recall
from papers.based.bounds.recall_bound import best_recall, table_recall

BOUND, TABLE, LINEAR = "bound (F.3)", "table of values", "linear state, random keys"
"""Names of the lines."""

FLOAT_BITS = 32
"""Bits of a number in the linear states."""

WIDTHS = tuple(2**n for n in range(2, 9))
"""d_k = d_v of the linear states."""


def curves(directory: Path) -> list[Line]:
    """Return the lines, and the best models of a study's directory (`results.jsonl` and `study.json`).

    The models are of the families in the paper's figure.
    """
    study = read_json(directory / "study.json")
    shown = published_points()
    rows = [row for row in best(Results(directory / "results.jsonl").rows) if row["family"] in shown]
    return [*theory(study["scale"]), *lines(rows, state_bytes)]


def published_curves() -> list[Line]:
    """Return the lines at the paper's scale, and the points of its figure."""
    return [*theory("paper"), *published(published_points())]


def theory(scale: str) -> list[Line]:
    """Return the three lines at one scale: (bytes of the state, mean recall)."""
    pairs, values = pairs_and_values(scale)

    def line(name: str, sizes: Iterable[float], recall: Callable[[float, int], float]) -> Line:
        points = [(size, fmean(recall(size, count) for count in pairs)) for size in sizes]
        return Line(name, points, curve=True)

    filled = np.geomspace(1, 2 * max(pairs) * np.log2(values) / 8, 40).tolist()
    squares = {width**2 * FLOAT_BITS / 8: (width, width) for width in WIDTHS}
    return [
        line(BOUND, filled, lambda size, count: best_recall(8 * size, count, values, distinct=True)),
        line(TABLE, filled, lambda size, count: table_recall(8 * size, count, values)),
        line(LINEAR, squares, lambda size, count: expected_recall(count, squares[size], values)),
    ]


def bound(size: float, scale: str) -> float:
    """Return the largest mean recall over the tests of a scale with a state of `size` bytes."""
    pairs, values = pairs_and_values(scale)
    return fmean(best_recall(8 * size, count, values, distinct=True) for count in pairs)


def above(curve: Sequence[Line], scale: str) -> list[tuple[str, float, float]]:
    """Return the points (family, bytes, recall) that are above the bound: none, if the theorem holds."""
    points = [(line.family, *point) for line in curve for point in line.points]
    return [(family, size, recall) for family, size, recall in points if recall > bound(size, scale) + 1e-9]


def pairs_and_values(scale: str) -> tuple[list[int], int]:
    """Return the pairs of each test, and how many values there are: the upper half of the vocabulary."""
    segments = DATA[scale]["test"].split(",")
    return [int(segment.split(":")[1]) for segment in segments], DATA[scale]["vocab_size"] // 2
