"""Choose the candidate to measure next, so that the best choices so far are good whenever time runs out.

First come, case by case, the current choice and its neighbours, which differ from it in one field; then the
most promising of the others: a regression on the times so far estimates the effect of each value of a field.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

RIDGE = 0.1
"""Ridge penalty: shrinks the effect of a value with few measurements towards 0."""

REFUSED = 1.0
"""Logarithm of the time over the current choice's that is assumed for a candidate that does not run."""


class Order:
    """Candidates by case, each case's current choice first; the cases in order of importance."""

    def __init__(self, cases: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Take the fields of each candidate, as ``[[{"chunk": 64, "warps": 4}, ...], ...]``."""
        self._features = [_features(candidates) for candidates in cases]
        self._first: list[tuple[int, int]] = []
        self._rest: list[list[int]] = [[] for _ in cases]
        for case, candidates in enumerate(cases):
            for i, candidate in enumerate(candidates):
                if sum(candidate[name] != candidates[0][name] for name in candidate) <= 1:
                    self._first.append((case, i))
                else:
                    self._rest[case].append(i)
        self._measured: list[dict[int, float]] = [{} for _ in cases]
        self._predicted: dict[int, np.ndarray] = {}

    @property
    def first(self) -> int:
        """Return the number of current choices and neighbours."""
        return len(self._first)

    def take(self) -> tuple[int, int] | None:
        """Take the best (case, candidate) that is not taken yet; return None if all are."""
        if self._first:
            return self._first.pop(0)
        left = [(case, i) for case, rest in enumerate(self._rest) for i in rest]
        if not left:
            return None
        case, i = min(left, key=lambda each: (self._prediction(each[0])[each[1]], each))
        self._rest[case].remove(i)
        return case, i

    def learn(self, case: int, candidate: int, ratio: float | None) -> None:
        """Record a time over the current choice's; None if the candidate does not run."""
        self._measured[case][candidate] = REFUSED if ratio is None else float(np.log(ratio))
        self._predicted.pop(case, None)

    def _prediction(self, case: int) -> np.ndarray:
        """Predict the logarithm of each candidate's time over the current choice's."""
        if case not in self._predicted:
            x, measured = self._features[case], self._measured[case]
            rows, y = x[list(measured)], np.array(list(measured.values()))
            worth = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(x.shape[1]), rows.T @ y)
            self._predicted[case] = x @ worth
        return self._predicted[case]


def _features(candidates: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return (candidates, values other than the current choice's): 1 where a candidate has the value."""
    present = candidates[0]
    pairs = {pair for other in candidates for pair in other.items()}
    values = sorted(pairs - set(present.items()), key=str)
    return np.array([[float(other[name] == value) for name, value in values] for other in candidates])
