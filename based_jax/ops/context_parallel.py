"""Sequences split over devices: what the devices of a mesh axis tell each other (context parallelism).

Under `jit`, and inside `over(mesh)` while it traces, an op that is decorated with `splits` runs where its
tokens are: each device of the mesh's axis "context" computes its part of every sequence, the parts in the
order of the devices, and asks here for what lies before it.

    a linear recurrence    the state behind the devices before: an exclusive scan, log2(devices) rounds
    windows, short taps    a halo of the last tokens of the devices before
    softmax attention      the keys and values of all devices
    long convolutions      other channels: all tokens of 1 / devices of them

Everything else (maps, norms, and mixers that look at whole rows) is left to the compiler, which may gather
whole sequences; `keep_tokens` tells it to leave activations where their tokens are and to bring weights to
them. Results and gradients are those of one device, but for the order of sums.
"""

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from based_jax.typing import Array

AXIS = "context"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_TOKENS: contextvars.ContextVar[NamedSharding | None] = contextvars.ContextVar("tokens", default=None)
_PART: contextvars.ContextVar[Array | None] = contextvars.ContextVar("part", default=None)


@contextlib.contextmanager
def over(tokens: NamedSharding | None) -> Iterator[None]:
    """While tracing: where (B, N) arrays are. Sequences are split if their mesh has an axis "context"."""
    with _set(_TOKENS, tokens):
        yield


def keep_tokens(x: Array) -> Array:
    """x, (B, N, ...), with its tokens where `over` says that they are."""
    tokens = _TOKENS.get()
    return x if tokens is None or is_split() else lax.with_sharding_constraint(x, tokens)


def devices() -> int:
    """Number of devices of the mesh that (B, N) arrays are on; 1 without a mesh."""
    tokens = _TOKENS.get()
    return 1 if tokens is None else tokens.mesh.size


def is_active() -> bool:
    """Whether a mesh is given, or arrays are parts."""
    return _TOKENS.get() is not None or is_split()


def splits(*names: str) -> Callable[[F], F]:
    """Decorate an op on (B, N, ...) arrays that can run on a part of its tokens.

    A call that continues from an `initial_state`, or whose length the devices do not divide, is not split;
    one that is split has no state to return: its place is None.

    Args:
        names: of the arguments, pytrees, whose arrays have an axis of tokens. The axis may be 1.
    """

    def decorate(op: F) -> F:
        signature = inspect.signature(op)

        @functools.wraps(op)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            tokens = _TOKENS.get()
            if tokens is None or is_split() or tokens.mesh.shape.get(AXIS, 1) == 1:
                return op(*args, **kwargs)
            mesh = tokens.mesh
            given = dict(signature.bind(*args, **kwargs).arguments)
            length = jax.tree.leaves(given[names[0]])[0].shape[1]
            if given.get("initial_state") is not None or length % mesh.shape[AXIS]:
                return op(**given)
            wants_state = given.pop("return_state", False)
            rows = {name: given.pop(name) for name in names if name in given}
            arrays = {name: value for name, value in given.items() if _is_array(value)}
            options = {name: value for name, value in given.items() if name not in arrays}

            def run(rows: Any, arrays: Any, part: Array) -> Any:
                with _set(_PART, part[0]):
                    return op(**rows, **arrays, **options)

            along = PartitionSpec(None, AXIS)
            specs = jax.tree.map(lambda x: along if x.shape[1] == length else PartitionSpec(), rows)
            # Over the other axes of the mesh the compiler goes on as outside.
            y = jax.shard_map(
                run, mesh=mesh, in_specs=(specs, PartitionSpec(), PartitionSpec(AXIS)), out_specs=along,
                axis_names={AXIS}, check_vma=False,
            )(rows, arrays, jnp.arange(mesh.shape[AXIS]))  # fmt: skip
            return (y, None) if wants_state else y

        return wrapper  # pyright: ignore[reportReturnType]

    return decorate


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def is_split() -> bool:
    """Whether the arrays of an op are parts here."""
    return _PART.get() is not None


def parts() -> int:
    """Number of devices that have a part of each sequence; 1 where it is not split."""
    return lax.axis_size(AXIS) if is_split() else 1


def part() -> Array:
    """This device's number, from 0.

    An input of the split program: XLA cannot compile `lax.axis_index` where other axes are left to it and the
    op is recomputed (jax 0.10).
    """
    number = _PART.get()
    if number is None:
        raise RuntimeError("part: expected to be called where sequences are split")
    return number


@contextlib.contextmanager
def whole_sequences() -> Iterator[None]:
    """Where a part has been exchanged for whole sequences."""
    with _set(_PART, None), _set(_TOKENS, None):
        yield


def scan_before(combine: Callable[[T, T], T], own: T, first: T) -> T:
    """`first` and the `own` of all devices before this one, combined: an exclusive scan over the devices.

    Args:
        combine: associative, of an earlier and a later pytree of arrays.
        own: what this device's part amounts to.
        first: what is before the first part; an identity of `combine` from the left, or a value that needs
            no more than to be combined once.
    """
    size, index = parts(), part()

    def received(tree: T, step: int) -> T:
        return jax.tree.map(lambda x: _from_before(x, step), tree)

    def choose(condition: Array, yes: T, no: T) -> T:
        return jax.tree.map(lambda yes, no: jnp.where(condition, yes, no), yes, no)

    before = choose(index == 0, first, received(own, 1))
    step = 1
    while step < size:
        before = choose(index >= step, combine(received(before, step), before), before)
        step *= 2
    return before


def sums_before(run: Callable[[T], T], empty: T, left: Any, apply: Callable[[Any, T], T]) -> T:
    """The state in front of this device's part, of a recurrence that is affine in its state.

    Args:
        run: a state in front of the part to the one behind it.
        empty: the state before the first token.
        left: what the part leaves of any state, the linear map of `run` without its constant.
        apply: a `left` to a state, or to an earlier `left`.
    """

    def combine(earlier: tuple[Any, T], later: tuple[Any, T]) -> tuple[Any, T]:
        (left1, state1), (left2, state2) = earlier, later
        return apply(left2, left1), jax.tree.map(jnp.add, state2, apply(left2, state1))

    nothing = (jax.tree.map(jnp.zeros_like, left), empty)
    return scan_before(combine, (left, run(empty)), nothing)[1]


def scale_all(left: Any, state: T) -> T:
    """`apply` of `sums_before` where what is left is a factor for each array of the state."""
    return jax.tree.map(jnp.multiply, left, state)


def halo(x: Array, count: int) -> Array:
    """The `count` tokens (axis 1) before this part, from as many devices as hold them; before all: zeros."""
    length = x.shape[1]
    hops = -(-count // length)
    pieces = [_from_before(x, hop) for hop in range(hops, 0, -1)]
    if hops > 1:
        return jnp.concatenate(pieces, axis=1)[:, hops * length - count :]
    # Only what is asked for travels.
    return _from_before(x[:, length - count :], 1) if hops else x[:, :0]


def whole(x: Array) -> Array:
    """(B, n, ...) of all devices as one (B, N, ...)."""
    return lax.all_gather(x, AXIS, axis=1, tiled=True)


def to_channels(x: Array) -> Array:
    """(B, n, E) of all channels to (B, N, E / devices); E is padded with zeros where it has to be."""
    channels = x.shape[-1]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -channels % parts())])
    return lax.all_to_all(x, AXIS, split_axis=2, concat_axis=1, tiled=True)


def own_channels(x: Array) -> Array:
    """This device's share of the last axis, as `to_channels` deals it."""
    width = -(-x.shape[-1] // parts())
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width * parts() - x.shape[-1])])
    return lax.dynamic_slice_in_dim(x, part() * width, width, axis=-1)


def to_tokens(x: Array, channels: int) -> Array:
    """The inverse of `to_channels`."""
    return lax.all_to_all(x, AXIS, split_axis=1, concat_axis=2, tiled=True)[..., :channels]


def _from_before(x: Array, step: int) -> Array:
    """x of the device `step` before this one; zeros on the first ones."""
    size = parts()
    return lax.ppermute(x, AXIS, [(source, source + step) for source in range(size - step)])
