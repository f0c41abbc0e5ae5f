"""Models shared by the tests: compiling dominates their time."""

from collections.abc import Callable

import jax
import pytest

from tests.generate.tiny import Tiny, make_tiny


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Tiny]:
    """Make (once) the tiny model of a layer schedule."""
    made: dict[str, Tiny] = {}

    def get(schedule: str) -> Tiny:
        if schedule not in made:
            made[schedule] = make_tiny(schedule)
        return made[schedule]

    return get


@pytest.fixture(scope="session")
def hybrid(tiny: Callable[[str], Tiny]) -> Tiny:
    """A state of fixed size and a cache in one model."""
    return tiny("CA")


@pytest.fixture(scope="session")
def wide() -> Tiny:
    """A state of fixed size and a cache, in float64: greedy tokens that no order of sums changes."""
    with jax.enable_x64(True):
        return make_tiny("CA", dtype="float64")
