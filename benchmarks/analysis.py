"""Summarize timings: growth exponents, crossover lengths, ratios. Pure functions of the measured rows."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

Row = Mapping[str, Any]
"""One measured case; see `report.new_report` for the keys."""


def series(rows: Iterable[Row], candidate: str, direction: str, key: str = "seconds") -> dict[int, float]:
    """Return length -> value of `key` for one candidate, in order of length."""
    chosen = [row for row in rows if (row["candidate"], row["pass"]) == (candidate, direction)]
    return {row["length"]: row[key] for row in sorted(chosen, key=itemgetter("length")) if row.get(key)}


def growth_exponent(values: Mapping[int, float], start: int = 0) -> float | None:
    """Fit p of value ~ length^p, by least squares of log on log from `start` up; None below two points."""
    points = [(length, value) for length, value in values.items() if length >= start]
    if len(points) < 2:
        return None
    x, y = np.log(np.asarray(points, np.float64)).T
    x = x - x.mean()
    return float(x @ y / (x @ x))


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Return theirs / ours where both were measured: above 1, ours is faster."""
    return {length: theirs[length] / ours[length] for length in sorted(ours.keys() & theirs.keys())}


def crossover(ours: Mapping[int, float], theirs: Mapping[int, float]) -> int | None:
    """Return the first measured length from which ours stays faster; None if it is slower at the last one."""
    found = None
    for length, ratio in sorted(ratios(ours, theirs).items(), reverse=True):
        if ratio <= 1:
            break
        found = length
    return found
