"""What a study's figure shows, before it is drawn: panels of lines of points."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """The points of one family."""

    family: str
    points: Sequence[tuple[float, float]]
    """(x, accuracy)"""
    published: bool = False
    """whether they are a paper's"""
    frontier: bool = False
    """join only the points that beat all with a smaller x, not all of them"""

    @property
    def path(self) -> list[tuple[float, float]]:
        """The points that are joined, from left to right."""
        ordered = sorted(self.points)
        if not self.frontier:
            return ordered
        return [point for i, point in enumerate(ordered) if all(y < point[1] for _, y in ordered[:i])]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    lines: Sequence[Line]
    y_label: str = "accuracy"
    is_bytes: bool = False
    """x ticks in B, KB, MB"""
    ticks: Sequence[float] = ()
    """x ticks, where the powers of two in sight would be too many or too few"""


def lines(
    rows: Iterable[Mapping[str, Any]],
    x: Callable[[Mapping[str, Any]], float | None],
    *,
    frontier: bool = False,
) -> list[Line]:
    """Best rows as one line per family; rows without an x (a mixer that has no state) are left out."""
    families: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (value := x(row)) is not None:
            families.setdefault(row["family"], []).append((value, row["accuracy"]))
    return [Line(family, points, frontier=frontier) for family, points in families.items()]


def published(points: Mapping[str, Sequence[tuple[float, float]]], *, frontier: bool = False) -> list[Line]:
    """A paper's points as lines."""
    return [Line(family, values, published=True, frontier=frontier) for family, values in points.items()]


def state_bytes(row: Mapping[str, Any]) -> float | None:
    """Bytes of the state at the longest sequence, in float32, by the papers' formulas; None without one."""
    return row["state_size"] and 4 * row["state_size"]
