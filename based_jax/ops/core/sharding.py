"""Ops on meshes: sequences sharded over the mesh axis "context", and meshes with Explicit axes.

Ops take no mesh. Code that traces a step declares the sharding of (B, N) arrays by `with over(sharding):`. An
op that names its `tokens` (see `core.op`) then runs on the devices of its tokens, if the mesh has an axis
"context" of more than one device: each device computes its shard of every sequence, in the order of the
devices, and gets the data from before its shard by the functions of this module (docs/scaling.md lists them).
A call that continues from an `initial_state`, or whose length is not divisible by the devices, is not
sharded. A sharded call with `return_state` raises ValueError: no device has the state after a whole sequence.

Everything else (maps, norms, and mixers that read whole rows) is left to the compiler, which may gather whole
sequences. Models have one hook, `keep_tokens`, which makes the compiler keep activations on the devices of
their tokens and move the weights. Results and gradients are those of one device, up to the order of sums.

`jax.make_mesh` makes Explicit axes, where array types include the sharding and that of each gather, reshape
and matrix product must be unambiguous or given. This package gives none: under `jax.set_mesh(mesh)`, or with
arrays on such a mesh, ops and modules compute with the same axes as Auto, where the compiler decides, and
then type the results: `on_auto_axes`. Programs without such a mesh do not change.
"""

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from based_jax.ops.core.arrays import map_arrays, select
from based_jax.typing import Array
from based_jax.validate import expect

AXIS = "context"

T = TypeVar("T")

_TOKENS: Any = jax.make_user_context(None)
"""part of the key of `jit`'s cache of traced programs"""
_SHARD: contextvars.ContextVar[Array | None] = contextvars.ContextVar("shard", default=None)


@contextlib.contextmanager
def over(tokens: NamedSharding | None) -> Generator[None]:
    """Declare the sharding of (B, N) arrays while tracing; see the module."""
    with _TOKENS(tokens):
        yield


def keep_tokens(x: Array) -> Array:
    """Constrain x, (B, N, ...), to the sharding of `over`."""
    tokens: NamedSharding | None = _TOKENS.value
    return x if tokens is None or is_sharded() else lax.with_sharding_constraint(x, tokens)


def devices() -> int:
    """Return the number of devices of the mesh that (B, N) arrays are on; 1 without a mesh."""
    tokens: NamedSharding | None = _TOKENS.value
    return 1 if tokens is None else tokens.mesh.size


def is_active() -> bool:
    """Return whether `over` named a mesh, or arrays are shards."""
    return _TOKENS.value is not None or is_sharded()


def shards_tokens() -> bool:
    """Return whether a call of an op on whole sequences should run on the devices of its tokens."""
    tokens: NamedSharding | None = _TOKENS.value
    return not (tokens is None or is_sharded() or tokens.mesh.shape.get(AXIS, 1) == 1)


def over_devices(
    op: Callable[..., Any], names: Sequence[str], signature: inspect.Signature, args: Any, kwargs: Any
) -> Any:
    """Run an op on the devices of its tokens, where `shards_tokens`, if this call can be sharded.

    The arguments `names` (pytrees) have arrays with an axis of tokens, which may be 1.
    """
    mesh = cast(NamedSharding, _TOKENS.value).mesh
    given = dict(signature.bind(*args, **kwargs).arguments)
    length = jax.tree.leaves(given[names[0]])[0].shape[1]
    if given.get("initial_state") is not None or length % mesh.shape[AXIS]:
        return isolated(op, (), given, list(given.values()))
    # No device has the state after a whole sequence.
    expected = f"False with sequences sharded over the mesh axis {AXIS!r}"
    expect(not given.pop("return_state", False), "return_state", True, expected)
    rows = {name: given.pop(name) for name in names if name in given}
    leaves, tree = cast(Any, jax.tree.flatten(given))  # a function may be a `Partial` of arrays
    arrays = [leaf if _is_array(leaf) else None for leaf in leaves]

    def run(rows: Any, arrays: Any, shard: Array) -> Any:
        with _set(_SHARD, shard[0]):
            others = [leaf if array is None else array for array, leaf in zip(arrays, leaves, strict=True)]
            given = rows | jax.tree.unflatten(tree, others)
            return isolated(op, (), given, list(given.values()))

    along = PartitionSpec(None, AXIS)
    specs = map_arrays(lambda x: along if x.shape[1] == length else PartitionSpec(), rows)
    # The compiler still partitions over the other axes of the mesh, if they have several devices: else it
    # takes all to be manual, and partitioning a kernel fails (jax 0.12).
    axes = {AXIS, *(name for name, size in mesh.shape.items() if size == 1)}
    where: dict[str, Any] = {"mesh": mesh, "axis_names": axes, "check_vma": False}
    where |= {"in_specs": (specs, PartitionSpec(), PartitionSpec(AXIS)), "out_specs": along}
    return jax.shard_map(run, **where)(rows, arrays, jnp.arange(mesh.shape[AXIS]))


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar[T], value: T) -> Generator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def is_sharded() -> bool:
    """Return whether the arrays of an op are shards here."""
    return _SHARD.get() is not None


def shards() -> int:
    """Return the number of shards of each sequence; 1 if it is not sharded."""
    return lax.axis_size(AXIS) if is_sharded() else 1


def shard() -> Array:
    """Return this device's index, from 0.

    It is an input of the sharded program: XLA cannot compile `lax.axis_index` if it partitions the other axes
    and the op is recomputed (jax 0.10).
    """
    return cast(Array, _SHARD.get())


@contextlib.contextmanager
def whole_sequences() -> Generator[None]:
    """Compute with whole sequences, after the shards have been exchanged."""
    with _set(_SHARD, None), _TOKENS(None):
        yield


def scan_before(combine: Callable[[T, T], T], own: T, first: T) -> T:
    """Combine `first` and the `own` of all devices before this one: an exclusive scan over the devices.

    `combine`, of an earlier and a later pytree, is associative. `first` is a left identity of it, or a value
    that may be combined only once.
    """
    size, index = shards(), shard()

    def received(tree: T, step: int) -> T:
        return map_arrays(lambda x: _from_before(x, step), tree)

    before = select(index == 0, first, received(own, 1))
    step = 1
    while step < size:
        before = select(index >= step, combine(received(before, step), before), before)
        step *= 2
    return before


def affine_before(run: Callable[[T], T], empty: T, operator: Any, apply: Callable[[Any, Any], Any]) -> T:
    """Return the state before this device's shard, of a recurrence that is affine in its state.

    Args:
        run: maps a state before the shard to the state after it.
        empty: the state before the first token.
        operator: the shard's transition operator: the linear map of `run`, without its constant.
        apply: applies an operator to a state, or to an earlier operator.
    """

    def combine(earlier: tuple[Any, T], later: tuple[Any, T]) -> tuple[Any, T]:
        (first, state1), (second, state2) = earlier, later
        return apply(second, first), jax.tree.map(jnp.add, state2, apply(second, state1))

    nothing = (map_arrays(lambda x: jnp.zeros_like(x), operator), empty)
    return scan_before(combine, (operator, run(empty)), nothing)[1]


def halo(x: Array, count: int) -> Array:
    """Return the `count` tokens (axis 1) before this shard, from all devices that hold some; else zeros."""
    length = x.shape[1]
    hops = -(-count // length)
    earlier = [_from_before(x, hop) for hop in range(hops, 0, -1)]
    if hops > 1:
        return jnp.concatenate(earlier, axis=1)[:, hops * length - count :]
    # Send only the requested tokens.
    return _from_before(x[:, length - count :], 1) if hops else x[:, :0]


def whole(tree: T) -> T:
    """Gather arrays (B, n, ...) of all devices to (B, N, ...); unchanged if they are not shards."""
    if not is_sharded():
        return tree
    return map_arrays(lambda x: cast(Array, lax.all_gather(x, AXIS, axis=1, tiled=True)), tree)


def to_channels(x: Array) -> Array:
    """Exchange (B, n, E) for (B, N, E / devices), with E padded with zeros if necessary."""
    channels = x.shape[-1]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -channels % shards())])
    return lax.all_to_all(x, AXIS, split_axis=2, concat_axis=1, tiled=True)


def own_channels(x: Array) -> Array:
    """Return this device's share of the last axis, as distributed by `to_channels`."""
    width = -(-x.shape[-1] // shards())
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width * shards() - x.shape[-1])])
    return lax.dynamic_slice_in_dim(x, shard() * width, width, axis=-1)


def to_tokens(x: Array, channels: int) -> Array:
    """Invert `to_channels`."""
    return lax.all_to_all(x, AXIS, split_axis=1, concat_axis=2, tiled=True)[..., :channels]


def _from_before(x: Array, step: int) -> Array:
    """Return x of the device `step` positions before this one; zeros on the first `step` devices."""
    size = shards()
    return lax.ppermute(x, AXIS, [(source, source + step) for source in range(size - step)])


@contextlib.contextmanager
def own_settings() -> Generator[None]:
    """Restore JAX's defaults for settings that raise.

    Arrays of different ranks broadcast regardless of `jax_numpy_rank_promotion`, and `jax.transfer_guard`
    allows the code's constants, which outside `jit` are transferred to the device one by one.
    """
    with jax.numpy_rank_promotion("allow"), jax.transfer_guard("allow"):
        yield


def isolated(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], like: Any = None
) -> Any:
    """Call a function with `own_settings`, `on_auto_axes`."""
    with own_settings():
        return on_auto_axes(function, (args, kwargs), like)(*args, **kwargs)


def on_auto_axes(function: Callable[..., Any], arguments: Any, like: Any = None) -> Callable[..., Any]:
    """Return a function that computes on Auto axes instead of Explicit ones; itself if there are none.

    Args:
        function: must use no arrays on the mesh except its arguments.
        arguments: a pytree that contains the arrays it will be called with.
        like: a pytree; results are sharded like its first array with sharded rows, or else its first array,
            along as many of the leading axes as have its sizes. None replicates results.
    """
    mesh = explicit_mesh(arguments)
    if mesh is None:
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        auto = mesh.abstract_mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
        with use_abstract_mesh(auto):
            args, kwargs = jax.tree.map(_untyped, (args, kwargs))
            results = function(*args, **kwargs)
        return placed(results, mesh, like)

    return run


def explicit_mesh(arrays: Any) -> Mesh | AbstractMesh | None:
    """Return the mesh of the context or of the first of these arrays that has one, if it has Explicit axes.

    Outside `jit` and without a context only the arrays themselves know their devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        return mesh if mesh.explicit_axes else None
    for x in jax.tree.leaves(arrays):
        if isinstance(x, jax.Array) and (mesh := jax.typeof(x).sharding.mesh).explicit_axes:
            known = None if isinstance(x, Tracer) else x.sharding
            return known.mesh if isinstance(known, NamedSharding) else mesh
    return None


def placed(results: Any, mesh: Mesh | AbstractMesh | None, like: Any) -> Any:
    """Return the results with their arrays sharded as in `on_auto_axes`; unchanged without a mesh."""
    if mesh is None:
        return results
    shape, spec = _rows(like)

    def reshard(x: Any) -> Any:
        if not isinstance(x, jax.Array):
            return x
        same = 0
        while same < min(x.ndim, len(shape)) and x.shape[same] == shape[same]:
            same += 1
        return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec[:same])))

    return jax.tree.map(reshard, results)


def _untyped(x: Any) -> Any:
    """Remove the mesh axes from an array's type; the compiler still knows its sharding."""
    if not isinstance(x, jax.Array) or not jax.typeof(x).sharding.mesh.explicit_axes:
        return x
    return jax.sharding.reshard(x, PartitionSpec())


def _rows(like: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return shape and partition of the array that results are sharded like; empty if there is none."""
    arrays = [x for x in jax.tree.leaves(like) if isinstance(x, jax.Array)]
    types = [jax.typeof(x) for x in arrays]
    rows = [x for x in types if x.ndim and tuple(x.sharding.spec)[:1] not in ((), (None,))]
    first = next(iter(rows or types), None)
    return ((), ()) if first is None else (first.shape, tuple(first.sharding.spec))
