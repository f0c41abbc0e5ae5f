"""Tier marks for the cases of a parametrized test; tests/README.md explains the tiers."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def slow_but(
    chosen: Collection[Any],
    cases: Iterable[Any],
    name: Callable[[Any], Any] = lambda x: x,
    *,
    core: Collection[Any] | None = None,
) -> list[Any]:
    """Parameters of a test: those that are not `chosen` (by `name`) are marked slow.

    Args:
        core: those of the chosen that `make check` runs too, None for all; the others are marked release.

    Raises:
        ValueError: something chosen is not there.
    """
    cases = list(cases)
    core = chosen if core is None else core
    missing = [choice for choice in (*chosen, *core) if choice not in map(name, cases)]
    if missing:
        raise ValueError(f"{missing} are chosen but no cases")

    def parameter(case: Any) -> Any:
        if name(case) in core:
            return case
        mark = pytest.mark.release if name(case) in chosen else pytest.mark.slow
        return pytest.param(case, marks=mark)

    return [parameter(case) for case in cases]


def release_but(
    core: Collection[Any], cases: Iterable[Any], name: Callable[[Any], Any] = lambda x: x
) -> list[Any]:
    """Parameters of a test: those that are not `core` (by `name`) are marked release."""
    cases = list(cases)
    return slow_but([name(case) for case in cases], cases, name, core=core)
