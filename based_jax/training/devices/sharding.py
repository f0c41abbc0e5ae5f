"""Map logical axis names to mesh axes, in one table; models never mention a mesh."""

import math
from typing import Any

import jax
from flax import linen as nn
from flax.linen.spmd import logical_to_mesh
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from based_jax.validate import expect

MESH_AXES = ("data", "fsdp", "tensor", "context")
"""Axes that a mesh may have; docs/scaling.md describes what each shards."""

RULES = (
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


def parse_mesh(text: str | None) -> Mesh | None:
    """Build a mesh over all devices from text such as ``"data=2,fsdp=2"``; None gives None.

    Raises:
        ValueError: unknown axis, bad size, or a product that is not the number of devices.
    """
    if not text:
        return None
    sizes = mesh_sizes(text)
    count = math.prod(sizes.values())
    expect(count == jax.device_count(), "mesh", text, f"sizes whose product is {jax.device_count()} devices")
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types)


def mesh_sizes(text: str | None) -> dict[str, int]:
    """Parse axis names and sizes in the order of the text; empty for None. ValueError: see `parse_mesh`."""
    sizes: dict[str, int] = {}
    for part in text.split(",") if text else ():
        axis, _, size = part.partition("=")
        is_pair = axis in MESH_AXES and size.isdigit() and int(size) >= 1 and axis not in sizes
        expected = f"axis=size pairs such as data=2,fsdp=2 with axes {', '.join(MESH_AXES)}"
        expect(is_pair, "mesh", text, expected)
        sizes[axis] = int(size)
    return sizes


def shardings_of(boxed: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Return the shardings of an abstract tree whose leaves carry logical axis names.

    An array is replicated over a mesh axis that does not divide the corresponding array axis.
    """
    rules = [(name, _present(axes, mesh)) for name, axes in RULES]

    def fit(spec: PartitionSpec, leaf: Any) -> NamedSharding:
        axes = [
            axis if axis is not None and size % mesh.shape[axis] == 0 else None
            for axis, size in zip(tuple(spec) + (None,) * leaf.ndim, leaf.shape, strict=False)
        ]
        return NamedSharding(mesh, PartitionSpec(*axes))

    def of(boxed: Any) -> Any:
        """Return the sharding of a leaf. A box may hold no array: an optimizer of other parameters only."""
        spec = logical_to_mesh(nn.get_partition_spec(boxed), rules)
        return jax.tree.map(lambda leaf: fit(spec, leaf), nn.meta.unbox(boxed))

    return jax.tree.map(of, boxed, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of (batch, length) arrays."""
    return NamedSharding(mesh, PartitionSpec(*(_present(axes, mesh) for axes in BATCH_AXES)))


def _present(axes: str | tuple[str, ...] | None, mesh: Mesh | AbstractMesh) -> Any:
    if isinstance(axes, tuple):
        return tuple(axis for axis in axes if axis in mesh.shape)
    return axes if axes in mesh.shape else None
