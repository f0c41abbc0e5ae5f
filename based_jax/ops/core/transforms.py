"""JAX's transformations and loops with precise types, which JAX's annotations lose."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
from jax import lax

from based_jax.typing import Array

F = TypeVar("F", bound=Callable[..., Any])
X = TypeVar("X")
Y = TypeVar("Y")


def checkpoint(function: F, *, prevent_cse: bool = True) -> F:
    """Apply `jax.checkpoint`."""
    return cast(F, jax.checkpoint(function, prevent_cse=prevent_cse))


def with_gradient(
    forward: Callable[..., Any], backward: Callable[..., Any], nondiff_argnums: tuple[int, ...] = ()
) -> Callable[[F], F]:
    """Decorate a function with a custom gradient: `jax.custom_vjp` and both of its rules."""

    def decorate(function: F) -> F:
        differentiable = cast(Any, jax.custom_vjp(function, nondiff_argnums=nondiff_argnums))
        differentiable.defvjp(forward, backward)
        return differentiable

    return decorate


def map_rows(function: Callable[[X], Y], rows: X) -> Y:
    """Apply `lax.map`: one row after another along the first axis."""
    return cast(Y, lax.map(function, rows))


def cond(condition: Array, yes: Callable[[], Y], no: Callable[[], Y]) -> Y:
    """Apply `lax.cond`."""
    return cast(Y, lax.cond(condition, yes, no))


def repeat(count: int, step: Callable[[Array, Y], Y], first: Y) -> Y:
    """Apply `lax.fori_loop` from 0."""
    return cast(Y, lax.fori_loop(0, count, step, first))
