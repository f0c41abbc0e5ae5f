"""Ops and mixers called outside `jit`: one compiled program per call instead of one per primitive.

JAX recompiles a `scan`, a `cond` or a custom gradient for each new Python function, and ops define such
functions inside: outside `jit` every call would compile. `compiled` jits an op once for all calls whose
arguments have the same shapes, dtypes and options, under `grad` and `vmap` too. While `jit` (or another
transformation that records a program) traces, the op runs directly. Both handle a mesh with Explicit axes.
"""

import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax
import numpy as np

from based_jax import compat
from based_jax.ops.core import border, context_parallel, dispatch, value_checks
from based_jax.validate import expect

F = TypeVar("F", bound=Callable[..., Any])


def compiled(op: F) -> F:
    """Decorate an op that is a function of its arguments alone and returns a pytree of arrays.

    Arrays anywhere in the arguments are traced; everything else is part of the program. So the op must not
    read values of arrays, nor compare their identities: put such a check before the call of a decorated
    function, or defer it (`value_checks`). Functions and modules from outside this package (such as a user's
    feature maps) may read mutable state: with one of them the op is not compiled.
    """

    def run(call: _Call, arrays: list[Any]) -> Any:
        with dispatch.on_platform(call.platform), value_checks.waiting() as checks:
            return body(*call.arguments(arrays)), checks

    def body(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with jax.named_scope(op.__name__.strip("_")):  # shown by profilers
            return border.run(op, args, kwargs, like=(args, list(kwargs.values())))

    run.__name__ = run.__qualname__ = op.__name__
    program = jax.jit(run, static_argnums=0)

    @functools.wraps(op)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if compat.is_recording() or context_parallel.is_active() or dispatch.is_for_tests():
            return body(args, kwargs)
        leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten((args, kwargs)))
        arrays = [leaf for leaf in leaves if _is_array(leaf)]
        for array in arrays:
            _expect_to_fit(array)
        options = tuple(_ARRAY if _is_array(leaf) else leaf for leaf in leaves)
        if not _never_change(options):
            return body(args, kwargs)
        kinds = tuple(map(type, options))
        with _naming(op, args):
            results = cast(Any, program(_Call(tree, options, kinds, dispatch.platform(arrays)), arrays))
        for check in results[1]:
            check.hold()
        return results[0]

    return wrapper  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def _naming(op: Callable[..., Any], args: Sequence[Any]) -> Generator[None]:
    """Name the op, or the module that is the first argument, in JAX's error about forward mode."""
    try:
        yield
    except TypeError as error:
        if "forward-mode autodiff" not in str(error):
            raise
        module = args[0] if args and dataclasses.is_dataclass(args[0]) else None
        name = op.__name__.strip("_") if module is None else type(module).__name__
        declared = dispatch.DECLARED.get(name)
        has_plain = hasattr(module, "implementation") or (declared and "reference" in declared.names)
        raise TypeError(
            f"{name} has no forward-mode derivative here (jax.jvp, jax.linearize, jax.jacfwd): expected "
            "reverse mode (jax.grad, jax.vjp, jax.hessian)"
            + " or implementation='reference'"
            * bool(has_plain)
        ) from error


@dataclass(frozen=True)
class _Call:
    """The static part of a call, which is part of its program."""

    tree: Any
    options: tuple[Any, ...]
    """leaves that are not arrays, and `_ARRAY` in place of arrays"""
    kinds: tuple[type, ...]
    """types of the options, because 1 == True == 1.0"""
    platform: str
    """platform of the arrays, which is unknown under `jit`"""

    def arguments(self, arrays: Iterable[Any]) -> Any:
        """Return the positional and the named arguments."""
        rest = iter(arrays)
        leaves = [next(rest) if option is _ARRAY else option for option in self.options]
        return jax.tree.unflatten(self.tree, leaves)


_ARRAY: Any = object()


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _expect_to_fit(array: Any) -> None:
    """Raise ValueError for NumPy integers that JAX would silently truncate to 32 bits."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or not array.size:
        return
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    if narrow == array.dtype:
        return
    limits, values = np.iinfo(narrow), cast(Any, array)
    for value in (values.min(), values.max()):
        what = f"from {limits.min} to {limits.max} without jax_enable_x64"
        expect(limits.min <= value <= limits.max, f"a number in an array of {array.dtype}", int(value), what)


def _never_change(options: tuple[Any, ...]) -> bool:
    """Return whether equal options mean equal programs."""
    try:
        hash(options)
    except TypeError:
        return False
    return all(_never_changes(option) for option in options)


def _never_changes(option: Any) -> bool:
    """Return whether an option behaves the same in every call: it holds no function from outside."""
    if isinstance(option, type) or not callable(option):
        return True
    if dataclasses.is_dataclass(option):  # a Flax module
        fields = [getattr(option, field.name) for field in dataclasses.fields(option)]
        return _is_ours(type(option)) and all(map(_never_changes, fields))
    option = inspect.unwrap(option)
    is_known = isinstance(option, types.FunctionType) and "<locals>" not in option.__qualname__
    return is_known and _is_ours(option)


def _is_ours(what: Any) -> bool:
    return what.__module__.split(".")[0] == __name__.split(".")[0]
