"""Read a mesh from the text of `--mesh`, and report what a training step needs on each of its devices.

A dry run allocates nothing: the devices are virtual CPUs and the arrays only shapes. A GPU's compiler plans
other scratch memory; parameters, optimizer state and their sharding are the same.
"""

import math
import re
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Column, Table

from based_jax.models.sharding import MESH_AXES
from based_jax.training.step import Programs, TrainState
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
        is_pair = axis in MESH_AXES and size.isdecimal() and int(size) >= 1 and axis not in sizes
        expected = f"axis=size pairs such as data=2,fsdp=2 with axes {', '.join(MESH_AXES)}"
        expect(is_pair, "mesh", text, expected)
        sizes[axis] = int(size)
    return sizes


def use_virtual_devices(mesh: str | None) -> None:
    """Create as many CPU devices as the mesh needs; call it before anything else queries JAX's devices."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", math.prod(mesh_sizes(mesh).values()))


def dry_run(programs: Programs, shape: tuple[int, int], *, segments: bool) -> None:
    """Compile a step, and print the layout and a device's memory; `shape` is rows, tokens of a batch."""
    console = Console(width=120)
    console.print(_layout(programs.abstract_state))
    rows = jax.ShapeDtypeStruct(shape, np.int32, sharding=programs.rows)
    batch = dict.fromkeys(("inputs", "targets", *(("segment_ids",) if segments else ())), rows)
    begin = time.perf_counter()
    lowered = programs.train.lower(programs.abstract_state, batch)  # pyright: ignore[reportFunctionMemberAccess]
    traced = time.perf_counter()
    memory = lowered.compile().memory_analysis()
    seconds = f"traced in {traced - begin:.1f} s, compiled in {time.perf_counter() - traced:.1f} s"
    sizes = {
        "state and batch": memory.argument_size_in_bytes,
        "scratch": memory.temp_size_in_bytes,
        "results that take new memory": memory.output_size_in_bytes - memory.alias_size_in_bytes,
    }
    table = _table("A training step on one device", "what", "MiB")
    for name, size in (*sizes.items(), ("together", sum(sizes.values()))):
        table.add_row(name, f"{size / 2**20:,.1f}")
    console.print(table)
    console.print(f"{jax.device_count()} devices, {shape[0]} x {shape[1]} tokens; {seconds}")


def shard_bytes(leaf: Any) -> int:
    """Return the bytes of one device's shard of an abstract array."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _layout(state: TrainState) -> Table:
    """Tabulate each kind of parameter, its sharded axes and bytes per device, and totals with the moments."""
    kinds: dict[tuple[str, str, str], list[Any]] = {}  # parameters that differ only in their layer index
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        name = "/".join(str(getattr(entry, "key", entry)) for entry in path[1:])
        spec = tuple(getattr(leaf.sharding, "spec", ())) + (None,) * leaf.ndim
        cut = ", ".join(str(axis or "-") for axis in spec[: leaf.ndim])
        shape = " x ".join(map(str, leaf.shape))
        kinds.setdefault((re.sub(r"^layers_\d+/", "layers_*/", name), shape, cut), []).append(leaf)
    table = _table("Layout on one device", "parameter", "shape", "cut over", "copies", "MiB each")
    for kind, leaves in kinds.items():
        table.add_row(*kind, str(len(leaves)), f"{shard_bytes(leaves[0]) / 2**20:,.2f}")
    table.add_section()
    for name, tree in (("all parameters", state.params), ("optimizer state", state.opt_state)):
        leaves = jax.tree.leaves(tree)
        whole = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        own = sum(map(shard_bytes, leaves))
        share = f"{whole / own:.2f} devices' worth" if own else ""
        table.add_row(name, f"{whole / 2**20:,.2f} MiB", share, str(len(leaves)), f"{own / 2**20:,.2f}")
    return table


def _table(title: str, *heads: str) -> Table:
    """Return a table whose columns of copies and MiB are of numbers."""
    numbers = ("copies", "MiB", "MiB each")
    columns = (Column(head, justify="right" if head in numbers else "left") for head in heads)
    return Table(*columns, title=title, title_justify="left")
