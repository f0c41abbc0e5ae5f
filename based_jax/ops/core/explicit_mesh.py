"""A mesh of JAX's own making: its axes are Explicit, and every array's type says how the array is sharded.

There each gather, reshape and matrix product must have one answer to how its result is sharded, or name it.
Nothing in this package does: under `jax.set_mesh(mesh)`, or with arrays on such a mesh, `run` computes with
the same axes as Auto, where the compiler decides, and types the results again. One place at the border of an
op or a module stands for an `out_sharding` in every product inside, and programs without such a mesh stay as
they are. (`jax.sharding.auto_axes` is the same, for results whose tree and ranks are known beforehand.)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh


def run(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], like: Any = None
) -> Any:
    """function(*args, **kwargs), on Auto axes where they are Explicit.

    Args:
        function: it must reach no array on the mesh but its arguments'.
        args, kwargs: pytrees of arrays and anything else.
        like: a pytree; the first array in it whose rows are sharded, or else the first one, is what results
            are sharded like: along as many of the leading axes as have its sizes. None replicates them.
    """
    mesh = explicit_mesh((args, kwargs))
    if mesh is None:
        return function(*args, **kwargs)
    auto = mesh.abstract_mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
    with use_abstract_mesh(auto):
        args, kwargs = jax.tree.map(_untyped, (args, kwargs))
        results = function(*args, **kwargs)
    return placed(results, mesh, like)


def explicit_mesh(arrays: Any) -> Mesh | AbstractMesh | None:
    """Return the mesh of the context or of the first of these arrays that has one, if it has Explicit axes.

    Outside `jit` and without a context only an array itself says which devices they are.
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
    """Return the arrays among the results, sharded as `run` says; without a mesh as they are."""
    if mesh is None:
        return results
    shape, spec = _rows(like)

    def place(x: Any) -> Any:
        if not isinstance(x, jax.Array):
            return x
        same = 0
        while same < min(x.ndim, len(shape)) and x.shape[same] == shape[same]:
            same += 1
        return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec[:same])))

    return jax.tree.map(place, results)


def _untyped(x: Any) -> Any:
    """Return an array whose type names no mesh axis; where it is stays known to the compiler."""
    if not isinstance(x, jax.Array) or not jax.typeof(x).sharding.mesh.explicit_axes:
        return x
    return jax.sharding.reshard(x, PartitionSpec())


def _rows(like: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Shape and partition of the array that results follow; nothing for none."""
    arrays = [x for x in jax.tree.leaves(like) if isinstance(x, jax.Array)]
    types = [jax.typeof(x) for x in arrays]
    rows = [x for x in types if x.ndim and tuple(x.sharding.spec)[:1] not in ((), (None,))]
    first = next(iter(rows or types), None)
    return ((), ()) if first is None else (first.shape, tuple(first.sharding.spec))
