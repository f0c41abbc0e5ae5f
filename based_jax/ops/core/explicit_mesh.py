"""Run ops on meshes with Explicit axes, as `jax.make_mesh` makes, where array types include the sharding.

There the sharding of each gather, reshape and matrix product must be unambiguous or given. This package gives
none: under `jax.set_mesh(mesh)`, or with arrays on such a mesh, `run` computes with the same axes as Auto,
where the compiler decides, and then types the results. One call at the border of an op or a module replaces
an `out_sharding` in every product inside, and programs without such a mesh do not change.
(`jax.sharding.auto_axes` does the same for results whose tree and ranks are known in advance.)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh


def run(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], like: Any = None
) -> Any:
    """Return function(*args, **kwargs), computed on Auto axes instead of Explicit ones.

    Args:
        function: must use no arrays on the mesh except its arguments.
        args, kwargs: pytrees of arrays and anything else.
        like: a pytree; results are sharded like its first array with sharded rows, or else its first array,
            along as many of the leading axes as have its sizes. None replicates results.
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
    """Return the results with their arrays sharded as in `run`; unchanged without a mesh."""
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
