"""Checks of values in a program that is compiled for a call outside `jit`: they wait until it has run.

What the program computes is unknown while it is traced. A check is then one result more, read after the run.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.core import Tracer

from based_jax import compat
from based_jax.typing import Array, Int
from based_jax.validate import expect


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AtMost:
    """That a number is no larger than a limit known beforehand."""

    value: Int[Array, ""]
    limit: int = field(metadata={"static": True})
    argument: str = field(metadata={"static": True})
    expected: str = field(metadata={"static": True})

    def hold(self) -> None:
        """Raise ValueError if it does not; under `vmap` a number is unknown even after the run."""
        if not isinstance(self.value, Tracer):
            value = int(self.value)
            expect(value <= self.limit, self.argument, value, self.expected)


_WAITING: contextvars.ContextVar[tuple[Any, list[AtMost]] | None] = contextvars.ContextVar(
    "waiting", default=None
)


@contextlib.contextmanager
def waiting() -> Iterator[list[AtMost]]:
    """While a program is traced: the checks that its results must carry."""
    checks: list[AtMost] = []
    token = _WAITING.set((compat.current_trace(), checks))
    try:
        yield checks
    finally:
        _WAITING.reset(token)


def waiting_here() -> list[AtMost] | None:
    """Where to add a check of what is traced now; None in other programs and in a part of one (`scan`)."""
    trace, checks = _WAITING.get() or (None, None)
    return checks if trace is compat.current_trace() else None
