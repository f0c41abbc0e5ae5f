"""Make kernels shardable by the compiler and vmappable, which bare kernels are not.

A sharded operand of an opaque call is gathered on every device. Rows and heads are independent in all our
kernels, so each device can run the same kernel on its own rows and heads: with a partitioning rule for this,
`jit` over arrays that are sharded alike needs no collective and no mesh. Others are resharded.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels.checks import expect
from pallas_kernels.launch import interpreted, is_interpreted
from pallas_kernels.offline import is_lowered_for_gpu

SHARDED = ("b", "h")
"""Axes that may be sharded over devices: rows of the batch and heads. All others stay whole."""


def per_row_and_head(
    function: Callable[..., tuple[jax.Array, ...]],
    operands: Sequence[str],
    results: Sequence[str],
    constants: Sequence[Any] = (),
) -> Callable[..., tuple[jax.Array, ...]]:
    """Let `function` run on shards of the rows and heads, and add a rule for `vmap`.

    Args:
        function: maps arrays to a tuple of arrays; row i, head j of results depends on row i, head j only.
        operands, results: the axes of each array in order, one letter or word each, as "b n h k"; the first
            is always "b". Axes with one name have one size.
        constants: further arrays that `function` takes after the operands, whole on every device; it cannot
            create arrays from NumPy arrays itself.
    """
    constant_axes = [" ".join(f"c{i}_{axis}" for axis in range(x.ndim)) for i, x in enumerate(constants)]
    whole = _partitioned(function, [*operands, *constant_axes], results, SHARDED)
    batched = custom_vmap(lambda *arrays: whole(*arrays, *map(jnp.asarray, constants)))

    @batched.def_vmap
    def _fold_into_rows(size: int, is_mapped: Sequence[bool], *arrays: jax.Array) -> tuple[Any, Any]:
        pairs = zip(arrays, is_mapped, strict=True)
        rows = (x if mapped else jnp.broadcast_to(x, (size, *x.shape)) for x, mapped in pairs)
        outputs = batched(*(x.reshape(-1, *x.shape[2:]) for x in rows))
        return tuple(y.reshape(size, -1, *y.shape[1:]) for y in outputs), (True,) * len(outputs)

    return batched


def per_channel(
    function: Callable[..., tuple[jax.Array, ...]],
    formula: Callable[..., tuple[jax.Array, ...]],
    operands: Sequence[str],
    results: Sequence[str],
    split: Sequence[str],
) -> Callable[..., tuple[jax.Array, ...]]:
    """Let `function` run on shards of some axes; under `vmap` and in reverse mode use `formula`.

    Args:
        formula: the same function in plain operations.
        operands, results: the axes of each array in order, as "b e". Axes with one name have one size.
        split: names of the axes that may be sharded over devices; all others stay whole.
    """
    whole = _partitioned(function, operands, results, split)
    batched = custom_vmap(lambda *arrays: whole(*arrays))

    @batched.def_vmap
    def _as_formula(size: int, is_mapped: Sequence[bool], *arrays: jax.Array) -> tuple[Any, Any]:
        axes = tuple(0 if mapped else None for mapped in is_mapped)
        outputs = jax.vmap(formula, in_axes=axes, axis_size=size)(*arrays)
        return outputs, (True,) * len(outputs)

    return with_gradient_of(formula, batched)


def _partitioned(
    function: Callable[..., tuple[jax.Array, ...]],
    operands: Sequence[str],
    results: Sequence[str],
    split: Sequence[str],
) -> Callable[..., tuple[jax.Array, ...]]:
    names = list(dict.fromkeys(" ".join([*operands, *results]).split()))
    words = [axes.split() for axes in (*results, *operands)]
    beside = {name: {other for axes in words if name in axes for other in axes} for name in names}
    interpret = is_interpreted()  # read now: partitioning happens at compilation, maybe outside the context

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        with interpreted() if interpret else contextlib.nullcontext():
            return function(*arrays)

    def partition(mesh: Mesh, arguments: Sequence[Any], shapes: Sequence[Any]) -> tuple[Any, ...]:
        """Shard the axes of one name alike in all arrays: they may come with different shardings."""
        arrays = (*shapes, *arguments)
        if not all(isinstance(array.sharding, NamedSharding) for array in arrays):
            # Within `shard_map` over some axes only: these shardings name no axes, and none can be made.
            _expect_alike(words, arrays)
            return mesh, run, *(tuple(array.sharding for array in group) for group in (shapes, arguments))
        # The axes of the mesh that each name is sharded over: those of the first array that has some.
        over: dict[str, tuple[str, ...]] = {}
        for axes, array in zip(words, arrays, strict=True):
            for name, part in zip(axes, array.sharding.spec, strict=False):
                wanted = (part,) if isinstance(part, str) else tuple(part or ())
                taken = {axis for other in beside[name] for axis in over.get(other, ())}
                if name in split and name not in over and wanted and taken.isdisjoint(wanted):
                    over[name] = wanted
        placed = [NamedSharding(mesh, PartitionSpec(*map(over.get, axes))) for axes in words]
        return mesh, run, tuple(placed[: len(results)]), tuple(placed[len(results) :])

    partitioned = custom_partitioning(run)
    partitioned.def_partition(
        partition=partition,
        sharding_rule=f"{', '.join(operands)} -> {', '.join(results)}",
        need_replication_factors=tuple(name for name in names if name not in split),
    )

    def on_devices(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        if _is_partly_manual():  # `partition` cannot gather the axes that stay whole
            arrays = tuple(
                _whole_but(split, axes.split(), x) for axes, x in zip(operands, arrays, strict=True)
            )
        return partitioned(*arrays)

    # Lowering for an absent GPU has no devices to partition over, and jax would require some.
    return run if is_lowered_for_gpu() else on_devices


def _is_partly_manual() -> bool:
    """Return whether this is traced within `shard_map` over some axes of a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 0 < len(mesh.manual_axes) < len(mesh.axis_names)


def _whole_but(split: Sequence[str], axes: Sequence[str], x: jax.Array) -> jax.Array:
    """Constrain an array to be whole along all axes but those that may be split."""
    spec = (PartitionSpec.UNCONSTRAINED if axis in split else None for axis in axes)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def _expect_alike(words: Sequence[Sequence[str]], arrays: Sequence[Any]) -> None:
    """Check that each device has the same part of every axis of a name."""
    parts: dict[str, list[int]] = {}
    for names, array in zip(words, arrays, strict=True):
        tiles = array.sharding._to_xla_hlo_sharding(array.ndim)
        counts = [] if tiles.is_replicated() else tiles.tile_assignment_dimensions()
        index = np.unravel_index(np.argsort(tiles.tile_assignment_devices()), counts) if counts else ()
        for axis, name in enumerate(names):
            # The part of each device, in the order of the devices; empty if they all have the whole axis.
            of_devices = index[axis].tolist() if counts and counts[axis] > 1 else []
            expected = "one that is split alike in all arrays, within shard_map over some axes of a mesh"
            expect(parts.setdefault(name, of_devices) == of_devices, "axis", name, expected)


def with_gradient_of(
    formula: Callable[..., Any], function: Callable[..., tuple[jax.Array, ...]]
) -> Callable[..., Any]:
    """Differentiate `function` through `formula`, the same in plain operations, which is then recomputed."""
    differentiable = jax.custom_vjp(function)
    differentiable.defvjp(
        lambda *arrays: (differentiable(*arrays), arrays),
        lambda arrays, cotangents: jax.vjp(formula, *arrays)[1](cotangents),
    )
    return differentiable
