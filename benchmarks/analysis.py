"""Summarize timings: growth exponents, crossover lengths. Pure functions of the measured rows."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from statistics import linear_regression
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
    return linear_regression(*np.log(points).T.tolist()).slope


def crossover(ours: Mapping[int, float], theirs: Mapping[int, float]) -> int | None:
    """Return the first common length from which ours stays faster; None if it is slower at the last one."""
    found = None
    for length in sorted(ours.keys() & theirs.keys(), reverse=True):
        if theirs[length] <= ours[length]:
            break
        found = length
    return found
