"""Which cases of a test run every time."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def slow_but(
    chosen: Collection[Any], cases: Iterable[Any], name: Callable[[Any], Any] = lambda x: x
) -> list[Any]:
    """Parameters of a test: those that are not `chosen` (by `name`) are marked slow.

    Raises:
        ValueError: something chosen is not there.
    """
    cases = list(cases)
    missing = [choice for choice in chosen if choice not in map(name, cases)]
    if missing:
        raise ValueError(f"{missing} are chosen but no cases")
    return [case if name(case) in chosen else pytest.param(case, marks=pytest.mark.slow) for case in cases]
