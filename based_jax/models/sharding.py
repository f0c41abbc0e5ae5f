"""Map the logical axis names of parameters to mesh axes, in one table; models never mention a mesh."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from flax import linen as nn
from flax.linen.spmd import logical_to_mesh
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor", "context")
"""Axes of the library's own meshes; docs/scaling.md describes what each shards."""

Rules: TypeAlias = Sequence[tuple[str, str | tuple[str, ...] | None]]
"""pairs of a parameter's axis and the mesh axis, or axes, over which it is sharded"""

RULES: Rules = (
    ("embed", "fsdp"),
    ("vocab", "tensor"),
    ("heads", "tensor"),
    ("kv_heads", "tensor"),
    ("mlp", "tensor"),
    ("head_dim", None),
)
"""Name of a parameter's axis -> the mesh axis over which it is sharded."""

BATCH_AXES = (("data", "fsdp"), ("context",))
"""Mesh axes over which the rows and the tokens of a batch are sharded."""


def shardings_of(boxed: Any, mesh: Mesh | AbstractMesh, rules: Rules | None = None) -> Any:
    """Return the shardings of an abstract tree whose leaves carry logical axis names.

    An array is replicated over a mesh axis that does not divide the corresponding array axis. A mesh without
    any axis that the rules name is warned of: everything would be replicated.

    Args:
        boxed: what `jax.eval_shape` makes of a module's `init`.
        rules: pairs like `RULES`, the default, for meshes with other axes.
    """
    _warn_of_unknown_axes(mesh, RULES if rules is None else rules, MESH_AXES if rules is None else ())
    present = [(name, _present(axes, mesh)) for name, axes in (RULES if rules is None else rules)]

    def of(boxed: Any) -> Any:
        """Return the sharding of a leaf. A box may hold no array: an optimizer of other parameters only."""
        spec = logical_to_mesh(nn.get_partition_spec(boxed), present)

        def fit(leaf: Any) -> NamedSharding:
            axes = [
                axis if axis is not None and size % _size(mesh, axis) == 0 else None
                for axis, size in zip(tuple(spec) + (None,) * leaf.ndim, leaf.shape, strict=False)
            ]
            return NamedSharding(mesh, PartitionSpec(*axes))

        return jax.tree.map(fit, nn.meta.unbox(boxed))

    return jax.tree.map(of, boxed, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata))


def specs_of(boxed: Any, mesh: Mesh | AbstractMesh, rules: Rules | None = None) -> Any:
    """Return the same without the mesh, for programs that run within ``jax.set_mesh(mesh)``."""

    def spec(sharding: NamedSharding) -> PartitionSpec:
        return sharding.spec

    return jax.tree.map(spec, shardings_of(boxed, mesh, rules))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of (batch, length) arrays."""
    return NamedSharding(mesh, PartitionSpec(*(_present(axes, mesh) for axes in BATCH_AXES)))


def _present(axes: str | tuple[str, ...] | None, mesh: Mesh | AbstractMesh) -> Any:
    if isinstance(axes, tuple):
        return tuple(axis for axis in axes if axis in mesh.shape)
    return axes if axes in mesh.shape else None


def _size(mesh: Mesh | AbstractMesh, axes: str | tuple[str, ...]) -> int:
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


def _warn_of_unknown_axes(mesh: Mesh | AbstractMesh, rules: Rules, known: Sequence[str]) -> None:
    named = {*known}.union(*((axes,) if isinstance(axes, str) else axes or () for _, axes in rules))
    if mesh.size > 1 and not named & {*mesh.shape}:
        warnings.warn(
            f"mesh with axes {', '.join(mesh.shape)}: the rules name {', '.join(sorted(named))}, so that "
            "every parameter is replicated; pass rules=[(axis of a parameter, axis of the mesh), ...]",
            stacklevel=3,
        )
