"""Deferred checks of values, for programs compiled for calls outside `jit`.

Values are unknown while the program is traced. A check is then one more result, read after the run.
"""

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from based_jax import compat
from based_jax.typing import Array, Int
from based_jax.validate import expect


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AtMost:
    """Check that a number is at most a limit known in advance."""

    value: Int[Array, ""]
    limit: int = field(metadata={"static": True})
    argument: str = field(metadata={"static": True})
    expected: str = field(metadata={"static": True})

    def hold(self) -> None:
        """Raise ValueError if the check fails; under `vmap` a number is unknown even after the run."""
        if not isinstance(self.value, Tracer):
            value = int(self.value)
            expect(value <= self.limit, self.argument, value, self.expected)


_WAITING: ContextVar[tuple[Any, list[AtMost]] | None] = ContextVar("waiting", default=None)


@contextlib.contextmanager
def waiting() -> Generator[list[AtMost]]:
    """Collect, while a program is traced, the checks that its results must carry."""
    checks: list[AtMost] = []
    token = _WAITING.set((compat.current_trace(), checks))
    try:
        yield checks
    finally:
        _WAITING.reset(token)


def expect_at_most(
    limit: int, argument: str, expected: str, number: Callable[..., Any], *arrays: Any
) -> None:
    """Check that a number is at most `limit`: now, after the program that computes it has run, or never.

    `number` takes a module, numpy or jax.numpy, and the arrays; argument and expected: see `validate.expect`.
    """
    if not any(isinstance(x, Tracer) for x in arrays):
        value = int(number(np, *map(np.asarray, arrays)))
        expect(value <= limit, argument, value, expected)
    elif (checks := _waiting_here()) is not None:
        checks.append(AtMost(number(jnp, *arrays), limit, argument, expected))


def _waiting_here() -> list[AtMost] | None:
    """Return the checks of the program being traced; None in other programs and inside a `scan`."""
    trace, checks = _WAITING.get() or (None, None)
    return checks if trace is compat.current_trace() else None
