"""Implementations of ops: an op declares its own, other packages register theirs.

    bj.ops.register("delta_rule", "my_kernel", function, supports=can_run, priority=1)

`implementation="my_kernel"` then runs that function or raises, in the op and in every mixer and model that
uses it; with a priority it is also a candidate if the caller names none. An installed package needs no import
for this if its pyproject.toml declares OP.NAME as a function without arguments that registers that
implementation:

    [project.entry-points."based_jax.ops"]
    "delta_rule.my_kernel" = "my_package.my_module:register"

It is called once: when the name is requested, or before the first call of the op that names none. A name that
the program has registered itself stays.
"""

import functools
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple, TypeVar

from based_jax.ops.core import context_parallel, dispatch
from based_jax.validate import expect

F = TypeVar("F", bound=Callable[..., Any])

ENTRY_POINTS = "based_jax.ops"
"""group of the entry points by which installed packages declare implementations"""


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
    """Add an implementation to an op; a name that is already registered is replaced.

    Register before the first call: compiled programs keep their implementation.

    Args:
        op: name of a function of `based_jax.ops` that takes `implementation`.
        name: name that callers pass as `implementation`.
        function: takes the op's arguments without `implementation` and returns the op's results, including
            the state with `return_state`. JAX differentiates it directly.
        supports: called with the same arguments; returns None, or a phrase with the reason why the function
            cannot run this call ("takes heads of at most 64 channels"). Default: it runs every call.
        priority: if `implementation` is None, candidates with a priority are tried in descending order,
            before the library's own; without a priority the function runs only by name.

    Raises:
        ValueError: unknown op, or a name of the op's own implementations.
    """
    own = dispatch.implementations(op)
    expect(name not in own, "name", name, f"a name other than {op}'s own: {', '.join(own)}")
    expect(callable(function), "function", function, "a function")
    _REGISTERED.setdefault(op, {})[name] = Implementation(function, supports or _everything, priority)


def implementations(op: str) -> tuple[str, ...]:
    """Return the names that `op` accepts as `implementation`.

    The registered ones come first, in order of registration; then its own, best first.

    Raises:
        ValueError: unknown op.
    """
    own = dispatch.implementations(op)
    return (*{**_REGISTERED.get(op, {}), **_installed().get(op, {})}, *own)


@functools.cache
def _installed() -> dict[str, dict[str, metadata.EntryPoint]]:
    """Return the entry points by op and name, without importing them."""
    found: dict[str, dict[str, metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=ENTRY_POINTS):
        op, _, name = point.name.partition(".")
        found.setdefault(op, {})[name] = point
    return found


@functools.cache
def _why_not_loaded(op: str, name: str) -> str | None:
    """Let an installed package register an implementation; return the reason of a failure, or None."""
    point = _installed()[op][name]
    try:
        point.load()()
    except Exception as error:  # errors of a package must not stop calls that do not need it
        return f"cannot load {point.value}: {error}"
    if name not in _REGISTERED.get(op, {}):
        return f"{point.value} has not registered it"
    return None


def implementation_for(
    op: str, *arrays: Any, implementation: str | None = None, unsupported: dispatch.Refusals = None
) -> str:
    """Return the implementation that runs for these arguments.

    Args:
        op: name of a function of `based_jax.ops` that takes `implementation`.
        arrays: its first array arguments (q, k, v), and the state of a decoding step: their shapes, dtypes
            and devices decide.
        implementation: the caller's choice; None picks the best.
        unsupported: reason why the call's other arguments exclude the library's kernels, or None; or reasons
            by kernel, for those that None may pick, the preferred first.

    Raises:
        ValueError: unknown op, an implementation that it does not have, or one that cannot run this call.
    """
    chosen = _registered_for(op, implementation, arrays, {})
    how: dict[str, Any] = {"implementation": implementation, "unsupported": unsupported}
    return chosen or dispatch.implementation_for(op, *arrays, **how)


def implemented_by(
    *names: str,
    supports: Callable[..., str | None] | None = None,
    is_slow: Callable[..., bool] | None = None,
    fastest: Callable[..., str] | None = None,
    on_cpu: Callable[..., str] | None = None,
) -> Callable[[F], F]:
    """Decorate a public op: declare its own implementations, and let other packages register theirs.

    A call that runs a registered implementation does not reach the op. All arguments but `names` are about
    the op's own kernels (`dispatch.KERNELS`):

    Args:
        names: values of `implementation` that the op accepts, best first; default "xla" and "reference".
        supports: maps a kernel and the op's first arrays (shapes, dtypes) to the reason why the kernel cannot
            take these on this GPU, or None.
        is_slow: maps the arrays to whether a kernel takes them but should run only on request.
        fastest: maps the arrays to what was measured to be the fastest on them: a kernel or "xla".
        on_cpu: maps the arrays to the name that None picks on a CPU; default "xla".
    """

    def decorate(op: F) -> F:
        name = op.__name__
        own = names or ("xla", "reference")
        dispatch.DECLARED[name] = dispatch.Declaration(own, supports, is_slow, fastest, on_cpu)

        @functools.wraps(op)
        def call(*args: Any, implementation: str | None = None, **options: Any) -> Any:
            has_others = name in _REGISTERED or name in _installed()
            chosen = _registered_for(name, implementation, args, options) if has_others else None
            if chosen is not None:
                return _REGISTERED[name][chosen].function(*args, **options)
            return op(*args, implementation=implementation, **options)

        return call  # pyright: ignore[reportReturnType]

    return decorate


def _registered_for(op: str, name: str | None, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """Return the registered implementation that runs a call, or None for the op's own.

    Raises:
        ValueError: the named implementation cannot run this call.
    """
    others = _installed().get(op, {})
    if name is not None:
        dispatch.expect_implementation(op, name, implementations(op))
        if name in dispatch.implementations(op):
            return None
        reason = _why_not_loaded(op, name) if name not in _REGISTERED.get(op, {}) else None
        reason = reason or _cannot_run(name, _REGISTERED[op][name], args, options)
        if reason is not None:
            raise ValueError(f"implementation = {name!r}: {reason}")
        return name
    for other in others:
        if other not in _REGISTERED.get(op, {}):
            _warn_if_not_loaded(op, other)
    known = _REGISTERED.get(op, {})
    candidates = {name: found.priority for name, found in known.items() if found.priority is not None}
    for name in sorted(candidates, key=lambda name: candidates[name], reverse=True):
        if _cannot_run(name, known[name], args, options) is None:
            return name
    return None


@functools.cache
def _warn_if_not_loaded(op: str, name: str) -> None:
    if reason := _why_not_loaded(op, name):
        warnings.warn(f"{op} ignores the implementation {name!r}: {reason}", stacklevel=4)


def _cannot_run(
    name: str, found: Implementation, args: tuple[Any, ...], options: dict[str, Any]
) -> str | None:
    if context_parallel.is_active():
        return "needs whole sequences, and these are sharded over devices"
    reason: Any = found.supports(*args, **options)
    is_reason = reason is None or isinstance(reason, str)
    expect(is_reason, f"supports of {name!r} returned", reason, "None, or a phrase with the reason")
    return reason


def _everything(*args: Any, **options: Any) -> None:
    """Support every call."""
