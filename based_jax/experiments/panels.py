"""Describe a study's figure before it is drawn: panels of lines of points."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from based_jax.plot import Line, Panel, byte_size

__all__ = ["STATE_AXIS", "Line", "Panel", "lines", "published", "state_bytes"]

STATE_AXIS: Mapping[str, Any] = {
    "x_label": "state at the longest test by the papers' formulas (bytes)",
    "x_tick": byte_size,
}
"""Options of panels over `state_bytes`."""


def lines(
    rows: Iterable[Mapping[str, Any]],
    x: Callable[[Mapping[str, Any]], float | None],
    *,
    frontier: bool = False,
) -> list[Line]:
    """Return the best rows as one line per family, without rows that have no x (mixers without a state)."""
    families: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (value := x(row)) is not None:
            families.setdefault(row["family"], []).append((value, row["accuracy"]))
    return [Line(family, points, frontier=frontier) for family, points in families.items()]


def published(points: Mapping[str, Sequence[tuple[float, float]]], *, frontier: bool = False) -> list[Line]:
    """Return a paper's points as lines."""
    return [Line(family, values, published=True, frontier=frontier) for family, values in points.items()]


def state_bytes(row: Mapping[str, Any]) -> float | None:
    """Return the bytes of the state at the longest sequence, in float32, by the papers' formulas, or None."""
    return row["state_size"] and 4 * row["state_size"]
