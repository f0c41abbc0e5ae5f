"""Describe a study's figure before it is drawn: panels of lines of points."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from based_jax.plot import Bars, Line, Panel, byte_size

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


def bars(rows: Iterable[Mapping[str, Any]], key: str, order: Sequence[str]) -> list[Bars]:
    """Return a panel for each value of `key`: the accuracy of each family, those in `order` first."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row[key], {})[row["family"]] = row["accuracy"]

    def panel(title: str, values: Mapping[str, float]) -> Bars:
        names = sorted(values, key=lambda name: order.index(name) if name in order else len(order))
        values = {name: values[name] for name in names}
        return Bars(title.replace("_", " "), "accuracy", values, "", (0.0, 1.0))

    return [panel(title, values) for title, values in found.items()]
