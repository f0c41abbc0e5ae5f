"""The one way through an op: a function of arrays and options, with one decorator.

    @stateful_op("pallas", "xla", "reference", tokens=("q", "k", "v", "mask"), supports=...)
    def taylor_attention(q, k, v, *, mask=None, implementation=None): ...

Inside `jit` the op is the function itself, after three questions: does another package's implementation run
this call (`implementations`), is the sequence sharded over devices, has the mesh Explicit axes (`sharding`)?
Outside `jit` it is `jax.jit` of the function, where arrays anywhere in the arguments are traced and the rest
is static: JAX would recompile a `scan`, a `cond` or a custom gradient for each new Python function, and ops
define such functions inside. An op that builds on another calls its undecorated function, `body(other)`.
Checks that several ops share are here, too; each error names the argument, its value and what was expected.
"""

import contextlib
import dataclasses
import functools
import inspect
import numbers
import types
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from based_jax import compat
from based_jax.ops.core import implementations, padding, platforms, sharding
from based_jax.typing import Array, Int
from based_jax.validate import expect, expect_array, expect_integer

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


def body(function: F) -> F:
    """Return the undecorated function of an op, for ops that build on it."""
    return getattr(function, "__wrapped__", function)


def op(
    *names: str,
    tokens: Sequence[str] = (),
    rows: Sequence[str] = (),
    supports: Callable[..., str | None] | None = None,
    fastest: Callable[..., str] | None = None,
    reads_values: bool = False,
) -> Callable[[F], F]:
    """Decorate a function of its arguments alone that returns a pytree of arrays.

    It must not read values of arrays, nor compare their identities; `expect_at_most` checks values.
    Functions and modules from outside this package (such as a user's feature maps) may read mutable state:
    with one of them the op is not compiled.

    Args:
        names: values of `implementation` that the op accepts, best first; other packages may add some. Empty
            for an op without such an argument.
        tokens: arguments (pytrees) whose arrays have an axis of tokens, maybe of size 1, if the op can run on
            a shard of the tokens.
        rows: the same arguments of an op with a `mask` that cannot.
        supports, fastest: see `implementations.Declaration`.
        reads_values: the op checks values, and is not compiled; what it calls may be.
    """

    def decorate(function: F) -> F:
        name = function.__name__.strip("_")
        signature, masked = inspect.signature(function), rows or tokens
        if names:
            implementations.DECLARED[name] = implementations.Declaration(names, supports, fastest)

        def run(call: _Call, arrays: list[Any]) -> Any:
            args, kwargs = call.arguments(arrays)
            with platforms.on_platform(call.platform), _waiting_checks() as checks, _entered(name):
                like = args, list(kwargs.values())
                return sharding.on_auto_axes(function, (args, kwargs), like)(*args, **kwargs), checks

        run.__name__ = run.__qualname__ = function.__name__
        program = jax.jit(run, static_argnums=0)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if "mask" in masked and padding.may_precede(kwargs.get("mask")):
                like = args, list(kwargs.values())
                shifted = functools.partial(padding.shifted, call, masked, signature)
                return sharding.isolated(shifted, (args, kwargs), {}, like)
            if names and (other := implementations.registered(name, args, kwargs)) is not None:
                kwargs.pop("implementation", None)
                return other(*args, **kwargs)
            is_direct = reads_values or compat.is_recording() or sharding.is_active()
            static = None if is_direct or platforms.is_for_tests() else _Call.of(args, kwargs)
            if static is None:
                with _entered(name), _naming(name, args):
                    if tokens and sharding.shards_tokens():
                        return sharding.over_devices(function, tokens, signature, args, kwargs)
                    like = args, list(kwargs.values())
                    return sharding.on_auto_axes(function, (args, kwargs), like)(*args, **kwargs)
            with _naming(name, args):
                results, checks = cast(Any, program(*static))
            for check in checks:
                check.hold()
            return results

        return call  # pyright: ignore[reportReturnType]

    return decorate


def stateful_op(*names: str, **how: Any) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Decorate an op that may also return a state; type checkers take its results as `Any`. See `op`."""
    return op(*names, **how)


@contextlib.contextmanager
def _entered(name: str) -> Generator[None]:
    with sharding.own_settings(), jax.named_scope(name):  # profilers show the scope
        yield


@contextlib.contextmanager
def _naming(name: str, args: Sequence[Any]) -> Generator[None]:
    """Name the op, or the module that is the first argument, in JAX's error about forward mode."""
    try:
        yield
    except TypeError as error:
        if "forward-mode autodiff" not in str(error):
            raise
        module = args[0] if args and dataclasses.is_dataclass(args[0]) else None
        name = name if module is None else type(module).__name__
        declared = implementations.DECLARED.get(name)
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

    @staticmethod
    def of(args: Any, kwargs: Any) -> "tuple[_Call, list[Any]] | None":
        """Return the static part of a call and its arrays; None if its options may change."""
        leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten((args, kwargs)))
        arrays = [leaf for leaf in leaves if _is_array(leaf)]
        for array in arrays:
            _expect_to_fit(array)
        options = tuple(_ARRAY if _is_array(leaf) else leaf for leaf in leaves)
        try:
            hash(options)
        except TypeError:
            return None
        if not all(map(_never_changes, options)):
            return None
        return _Call(tree, options, tuple(map(type, options)), platforms.platform_of(arrays)), arrays

    def arguments(self, arrays: Iterable[Any]) -> Any:
        """Return the positional and the named arguments."""
        rest = iter(arrays)
        leaves = [next(rest) if option is _ARRAY else option for option in self.options]
        return jax.tree.unflatten(self.tree, leaves)


_ARRAY: Any = object()


def _is_array(leaf: Any) -> bool:
    # The op itself names an argument that holds Python objects or strings.
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "OSU")


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AtMost:
    """Check that a number is at most a limit known in advance.

    Values are unknown while a program is traced: a check is one more result, read after the run.
    """

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
def _waiting_checks() -> Generator[list[AtMost]]:
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
        return
    trace, checks = _WAITING.get() or (None, [])
    if trace is compat.current_trace():  # not in other programs, nor inside a `scan`
        checks.append(AtMost(number(jnp, *arrays), limit, argument, expected))


def expect_qkv(q: Array, k: Array, v: Array) -> tuple[int, int, int, int, int]:
    """Check q and k, (B, N, H, K), and v, (B, N, H, V); return B, N, H, K, V."""
    expect_array("q", q, ("B", "N", "H", "K"), "floating")
    expect_array("k", k, q.shape, "floating")
    expect_array("v", v, (*q.shape[:3], "V"), "floating")
    batch, length, heads, width = q.shape
    return batch, length, heads, width, v.shape[-1]


def expect_scale(scale: Any, width: int) -> Any:
    """Check an argument `scale`, a number or an array of one; return it, or K^(-1/2) if None."""
    if scale is None:
        return width**-0.5
    expect_number("scale", scale)
    # Numbers of NumPy have a dtype, to which products with them would be promoted.
    return float(scale) if isinstance(scale, numbers.Real) else scale


def expect_number(argument: str, value: Any) -> None:
    """Check that an argument is a number or an array of one."""
    is_number = isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()
    expect(is_number, argument, value, "a number")


def with_number(q: Array, scale: Any) -> tuple[Array, float]:
    """Return queries and a number that together scale the scores, for kernels, which are compiled for it.

    An array, whose value may be unknown, multiplies the queries, and the number is 1.
    """
    if isinstance(scale, numbers.Real):
        return q, float(scale)
    return q * scale.astype(q.dtype), 1.0


def expect_chunk_size(chunk_size: int | None, default: int) -> int:
    """Check an argument `chunk_size`; return it, or the default if None."""
    if chunk_size is None:
        return default
    expect_integer("chunk_size", chunk_size, 1)
    return chunk_size


def expect_state(state: Any, **shapes: tuple[int | str, ...]) -> None:
    """Check the arrays of an `initial_state`, if there is one, by their names, which may be dotted."""
    for name, shape in shapes.items() if state is not None else ():
        array = state
        for part in name.split("."):
            expect(hasattr(array, part), "initial_state", type(state).__name__, f"a state with {name}")
            array = getattr(array, part)
        expect_array(f"initial_state.{name}", array, shape, "floating")


def expect_state_to_return(state: Any, return_state: bool) -> None:
    """Check that an op whose state has a fixed capacity got a state if it is to return one."""
    expect(state is not None or not return_state, "return_state", return_state, "False without a state")
