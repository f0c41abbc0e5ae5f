"""Implementations of ops by other packages.

    bj.ops.register("delta_rule", "my_kernel", function, supports=can_run, priority=1)

`implementation="my_kernel"` then means that function or an error, in the op and in every mixer and model that
uses it; with a priority it is also a candidate where the caller names none.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from based_jax.ops import context_parallel, dispatch
from based_jax.validate import expect

F = TypeVar("F", bound=Callable[..., Any])


class Implementation(NamedTuple):
    """A registered implementation."""

    function: Callable[..., Any]
    supports: Callable[..., str | None]
    priority: int | None


_REGISTERED: dict[str, dict[str, Implementation]] = {}
"""by op and name"""


def register(
    op: str,
    name: str,
    function: Callable[..., Any],
    *,
    supports: Callable[..., str | None] | None = None,
    priority: int | None = None,
) -> None:
    """Add an implementation to an op. A name that was registered before is replaced.

    Register before the first call: programs that are compiled already keep what they have.

    Args:
        op: name of a function of `based_jax.ops` that takes `implementation`.
        name: what callers pass as `implementation`.
        function: takes the op's arguments without `implementation` and returns what the op returns, the state
            too with `return_state`. It is differentiated as it is.
        supports: called with the same arguments; returns None, or a phrase with the reason why the function
            cannot run this call ("takes heads of at most 64 channels"). Default: it runs every call.
        priority: where `implementation` is None, candidates with a priority are tried in descending order,
            before the library's own; None is never picked without its name.

    Raises:
        ValueError: unknown op, or a name that the op has itself.
    """
    own = dispatch.implementations(op)
    expect(name not in own, "name", name, f"a name other than {op}'s own: {', '.join(own)}")
    expect(callable(function), "function", function, "a function")
    _REGISTERED.setdefault(op, {})[name] = Implementation(function, supports or _everything, priority)


def implementations(op: str) -> tuple[str, ...]:
    """Return the names that `op` accepts as `implementation`: registered ones, then its own, best first.

    Raises:
        ValueError: unknown op.
    """
    own = dispatch.implementations(op)
    return (*_REGISTERED.get(op, {}), *own)


def implementation_for(
    op: str, *arrays: Any, implementation: str | None = None, unsupported: str | None = None
) -> str:
    """Return the implementation that runs for these arguments; with None, the one that would be picked.

    Args:
        op: name of a function of `based_jax.ops` that takes `implementation`.
        arrays: its first array arguments (q, k, v): their shapes, dtypes and devices decide.
        implementation: the caller's request.
        unsupported: why the call's other arguments keep the library's kernels from running it, if they do.

    Raises:
        ValueError: unknown op, an implementation that it does not have, or one that cannot run this call.
    """
    chosen = _registered_for(op, implementation, arrays, {})
    if chosen is not None:
        return chosen
    return dispatch.implementation_for(op, *arrays, implementation=implementation, unsupported=unsupported)


def open_to_others(op: F) -> F:
    """Decorate a public op: a call that a registered implementation takes does not reach the op."""
    name = op.__name__

    @functools.wraps(op)
    def call(*args: Any, implementation: str | None = None, **options: Any) -> Any:
        chosen = _registered_for(name, implementation, args, options) if name in _REGISTERED else None
        if chosen is not None:
            return _REGISTERED[name][chosen].function(*args, **options)
        if implementation is not None:
            options["implementation"] = implementation
        return op(*args, **options)

    return call  # pyright: ignore[reportReturnType]


def _registered_for(op: str, name: str | None, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """The registered implementation that runs a call, or None for the op's own.

    Raises:
        ValueError: the one that was named cannot run this call.
    """
    known = _REGISTERED.get(op, {})
    if name is not None:
        every = implementations(op)
        expect(
            name in every, "implementation", name, f"None or one of {', '.join(map(repr, every))} for {op}"
        )
        if name not in known:
            return None
        reason = _cannot_run(known[name], args, options)
        if reason is not None:
            raise ValueError(f"implementation = {name!r}: {reason}")
        return name
    candidates = {name: found.priority for name, found in known.items() if found.priority is not None}
    for name in sorted(candidates, key=lambda name: candidates[name], reverse=True):
        if _cannot_run(known[name], args, options) is None:
            return name
    return None


def _cannot_run(found: Implementation, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    if context_parallel.is_active():
        return "needs whole sequences, and these are split over devices"
    return found.supports(*args, **options)


def _everything(*args: Any, **options: Any) -> None:
    """Support every call."""
