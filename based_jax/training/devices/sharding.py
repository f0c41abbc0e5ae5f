"""Read a mesh from the text of `--mesh`."""

import math

import jax
from jax.sharding import Mesh

from based_jax.models.sharding import MESH_AXES
from based_jax.validate import expect


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
