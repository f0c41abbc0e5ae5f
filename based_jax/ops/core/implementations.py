"""Implementations of ops, and the choice of one: a named one runs or raises, None picks the first that runs.

"reference" is the definition that tests compare with; None never picks it. "xla" runs anywhere, and so does
"tiled", which is made for CPUs. "pallas", "mosaic" and "triton" are the fused GPU kernels of
`pallas_kernels`; "cudnn" is NVIDIA's attention. Other packages `register` theirs, which then run in the op
and in every mixer and model that uses it (docs/adding_a_kernel.md).
"""

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pallas_kernels
from based_jax.ops.core import platforms, sharding
from based_jax.validate import expect, expect_choice, shown

KERNELS = ("cudnn", "pallas", "triton", "mosaic")
"""Fused kernels, in the order in which None tries them."""


class Declaration(NamedTuple):
    """An op's own implementations, and functions of its first arrays (shapes, dtypes)."""

    names: tuple[str, ...]
    """best first"""
    supports: Callable[..., str | None] | None
    """of a kernel and the arrays: the reason why the kernel cannot take these on this GPU, or None"""
    fastest: Callable[..., str] | None
    """of the first kernel that runs, or `"xla"`, and the arrays: the name that None picks instead"""


DECLARED: dict[str, Declaration] = {}
"""by op; `core.op` adds them"""

Refusals = str | Mapping[str, str | None] | None
"""reason why a call's other arguments exclude all kernels, or reasons by kernel, the preferred first"""


class Implementation(NamedTuple):
    """A registered implementation."""

    function: Callable[..., Any]
    supports: Callable[..., str | None] | None
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
        supports: called with the same arguments (by `implementation_for` with the arrays alone); returns
            None, or a phrase with the reason why the function cannot run this call ("takes heads of at most
            64 channels"). Default: it runs every call.
        priority: if `implementation` is None, candidates with a priority are tried in descending order,
            before the library's own; without a priority the function runs only by name.

    Raises:
        ValueError: unknown op, or a name of the op's own implementations.
    """
    names = own(op)
    expect(isinstance(name, str) and bool(name), "name", name, "a string that is not empty")
    expect(name not in names, "name", name, f"a name other than {op}'s own: {', '.join(names)}")
    expect(callable(function), "function", function, "a function")
    expect(supports is None or callable(supports), "supports", supports, "None or a function")
    expect(priority is None or isinstance(priority, int), "priority", priority, "None or an integer")
    _REGISTERED.setdefault(op, {})[name] = Implementation(function, supports, priority)


def implementations(op: str) -> tuple[str, ...]:
    """Return the names that `op` accepts as `implementation`.

    The registered ones come first, in order of registration; then its own, best first.

    Raises:
        ValueError: unknown op.
    """
    return (*_REGISTERED.get(op, {}), *own(op))


def own(op: str) -> tuple[str, ...]:
    """Return the names of the library's own implementations of `op`, best first."""
    expect_choice("op", op, tuple(DECLARED))
    return DECLARED[op].names


def implementation_for(
    op: str, *arrays: Any, implementation: str | None = None, unsupported: Refusals = None
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
        TypeError: something else than arrays.
        ValueError: unknown op, other arrays than its first ones, an implementation that it does not have, or
            one that cannot run this call.
    """
    if (chosen := _registered_for(op, implementation, arrays, {})) is not None:
        return chosen
    _expect_arrays(op, arrays)
    return choose(op, *arrays, implementation=implementation, unsupported=unsupported)


def choose(op: str, *arrays: Any, implementation: str | None = None, unsupported: Refusals = None) -> str:
    """Choose among the op's own implementations; see `implementation_for` for arguments and errors.

    None picks the first kernel that supports the call, in the order of `unsupported` or of `KERNELS`, unless
    another was measured to be faster. All are differentiable.
    """
    names = own(op)
    # Besides "cudnn" an op has kernels for windows only; then `unsupported` is by kernel.
    kernels = ("cudnn",) if "cudnn" in names else [kernel for kernel in KERNELS if kernel in names]
    is_by_kernel = isinstance(unsupported, Mapping)
    refusals = unsupported if is_by_kernel else dict.fromkeys(kernels, unsupported)
    if implementation is not None:
        _expect_name(op, implementation, names)
        if implementation in KERNELS:
            refusal = refusals.get(implementation) if is_by_kernel else unsupported
            reason = refusal or _cannot_run(op, implementation, arrays)
            if reason:
                raise ValueError(f"implementation = {implementation!r}: {reason}")
        return implementation
    running = (
        kernel for kernel, refusal in refusals.items() if not (refusal or _cannot_run(op, kernel, arrays))
    )
    found = next(running, "xla")
    fastest = DECLARED[op].fastest
    return fastest(found, *arrays) if arrays and fastest is not None else found


def _expect_arrays(op: str, arrays: Sequence[Any]) -> None:
    """Check a caller's arrays, if any, as far as the choice reads them."""
    expect_choice("op", op, tuple(DECLARED))
    declared = DECLARED[op]
    function = declared.fastest or declared.supports
    if not arrays or function is None:
        return
    parameters = list(inspect.signature(function).parameters.values())[1:]
    names = [each.name for each in parameters if each.default is each.empty]
    fits = len(names) <= len(arrays) <= len(parameters)
    expect(fits, "number of arrays", len(arrays), f"none, or {len(names)} for {op}: {', '.join(names)}")
    for name, array in zip(names, arrays, strict=False):
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise TypeError(f"{name} = {shown(array)}: expected an array")
        expect(len(array.shape) > 1, f"shape of {name}", tuple(array.shape), f"that of {name} in {op}")


def _expect_name(op: str, name: str, available: Sequence[str]) -> None:
    """Check a caller's `implementation`."""
    expected = f"None or one of {', '.join(map(repr, available))} for {op}"
    expect(name in available, "implementation", name, expected)


def registered(op: str, args: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the function of another package that runs a call, or None for the op's own implementations."""
    if op not in _REGISTERED:
        return None
    others = {name: value for name, value in options.items() if name != "implementation"}
    chosen = _registered_for(op, options.get("implementation"), args, others)
    return None if chosen is None else _REGISTERED[op][chosen].function


def _registered_for(op: str, name: str | None, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """Return the registered implementation that runs a call, or None for the op's own."""
    known = _REGISTERED.get(op, {})
    if name is not None:
        _expect_name(op, name, implementations(op))
        if name in own(op):
            return None
        if (reason := _refuses(name, known[name], args, options)) is not None:
            raise ValueError(f"implementation = {name!r}: {reason}")
        return name
    candidates = {name: found.priority for name, found in known.items() if found.priority is not None}
    for name in sorted(candidates, key=lambda name: candidates[name], reverse=True):
        if _refuses(name, known[name], args, options) is None:
            return name
    return None


def _refuses(name: str, found: Implementation, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    if sharding.is_active():
        return "needs whole sequences, and these are sharded over devices"
    reason: Any = found.supports and found.supports(*args, **options)
    is_reason = reason is None or isinstance(reason, str)
    expect(is_reason, f"supports of {name!r} returned", reason, "None, or a phrase with the reason")
    return reason


def _cannot_run(op: str, kernel: str, arrays: Sequence[Any]) -> str | None:
    """Return why `kernel` cannot compute `op` of these arrays here, or None."""
    if kernel == "triton" and (missing := [n for n in ("triton", "jax_triton") if not _has_module(n)]):
        return f"needs {' and '.join(missing)}; install based-jax[triton]"
    where = platforms.platform_of(arrays)
    has_interpreter = kernel not in ("triton", "cudnn")
    if where != "gpu" and not (pallas_kernels.is_interpreted() and has_interpreter):
        return (
            f"runs on GPUs, and these arrays are on {where!r}; expected None, 'xla' or 'reference'"
            + " (tests may use `with pallas_kernels.interpreted():`)" * has_interpreter
        )
    if kernel in ("pallas", "triton") and (reason := pallas_kernels.cannot_launch(kernel)):
        return reason
    supports = DECLARED[op].supports
    return supports(kernel, *arrays) if arrays and supports is not None else pallas_kernels.cannot_run()


def _has_module(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
