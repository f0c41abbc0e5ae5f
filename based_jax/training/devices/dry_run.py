"""Compile a run's step for a mesh of virtual devices and report its layout, memory and communication.

Nothing is allocated: the devices are virtual CPUs and the arrays only shapes. A GPU's compiler plans other
scratch memory and communication; parameters, optimizer state and their sharding are the same.

An instruction inside a loop counts once per iteration, where the compiler knows their number. Bytes are those
that one device receives in ring algorithms: (n - 1) / n of the whole array for an all-gather or
reduce-scatter over n devices, twice that for an all-reduce, all of it for a permute.
"""

import math
import re
import time
from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Column, Table

from based_jax.training.devices.sharding import mesh_sizes
from based_jax.training.step import Programs, TrainState

_KINDS = "all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all"
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\n((?:.+\n)*?)\}$", re.M)
_COLLECTIVE = re.compile(rf"= (\(?.*?\)?) ({_KINDS})(?:-start)?\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_LOOP = re.compile(r" while\(.*body=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r"(?:to_apply|calls|branch_computations|true_computation|false_computation)=\{?([^,}]*)")
_PARTITIONS = re.compile(r"num_partitions=(\d+)")
# The three notations for the devices of a group: a list, a table of groups, some axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_TABLE = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_AXIS_SIZE = re.compile(r"'(\w+)'=(\d+)")
_AXIS = re.compile(r"'(\w+)'(?::\(\d+\)(\d+))?")


class Traffic(NamedTuple):
    """The collectives of one kind in one run of a program."""

    count: int
    bytes: int  # received by one device


def use_virtual_devices(mesh: str | None) -> None:
    """Create as many CPU devices as the mesh needs; call it before anything else queries JAX's devices."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", math.prod(mesh_sizes(mesh).values()))


def dry_run(programs: Programs, shape: tuple[int, int], *, segments: bool) -> None:
    """Print the layout, a device's memory and the traffic of a step; `shape` is rows, tokens of a batch."""
    console = Console(width=120)
    console.print(_layout(programs.abstract_state))
    rows = jax.ShapeDtypeStruct(shape, np.int32, sharding=programs.rows)
    batch = dict.fromkeys(("inputs", "targets", *(("segment_ids",) if segments else ())), rows)
    begin = time.perf_counter()
    lowered = programs.train.lower(programs.abstract_state, batch)  # pyright: ignore[reportFunctionMemberAccess]
    traced = time.perf_counter()
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    sizes = {
        "state and batch": memory.argument_size_in_bytes,
        "scratch": memory.temp_size_in_bytes,
        "results that take new memory": memory.output_size_in_bytes - memory.alias_size_in_bytes,
    }
    table = _table("A training step on one device", "what", "MiB")
    for name, size in (*sizes.items(), ("together", sum(sizes.values()))):
        table.add_row(name, f"{size / 2**20:,.1f}")
    table.add_section()
    for kind, sent in traffic(compiled.as_text()).items():
        table.add_row(f"{kind}, received ({sent.count} times)", f"{sent.bytes / 2**20:,.1f}")
    console.print(table)
    seconds = f"traced in {traced - begin:.1f} s, compiled in {time.perf_counter() - traced:.1f} s"
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


def traffic(program: str) -> dict[str, Traffic]:
    """Return the traffic by kind, e.g. "all-gather", from a compiled program's text (`as_text()`)."""
    computations = _COMPUTATION.findall(program)
    bodies = {name: body.splitlines() for _, name, body in computations}
    entry = next(name for is_entry, name, _ in computations if is_entry)
    partitions = _PARTITIONS.search(program)
    everywhere = int(partitions[1]) if partitions else 1
    count, received = Counter[str](), Counter[str]()

    def visit(name: str, times: int) -> None:
        for line in bodies[name]:
            if found := _COLLECTIVE.search(line):
                shapes, kind = found.groups()
                count[kind] += times
                received[kind] += times * _received(kind, shapes, _group(line, everywhere))
            if loop := _LOOP.search(line):
                trips = _TRIPS.search(line)
                visit(loop[1], times * (int(trips[1]) if trips else 1))
            for called in _CALLED.findall(line):
                for inner in called.replace("%", "").split(","):
                    if inner.strip() in bodies:
                        visit(inner.strip(), times)

    visit(entry, 1)
    return {kind: Traffic(count[kind], received[kind]) for kind in sorted(count)}


def _group(line: str, everywhere: int) -> int:
    """Return the number of devices in a group; `everywhere` if the line does not list groups."""
    if listed := _LISTED.search(line):
        return listed[1].count(",") + 1
    if table := _TABLE.search(line):
        return int(table[1])
    if mesh := _MESH.search(line):
        sizes = dict(_AXIS_SIZE.findall(mesh[1]))
        return math.prod(int(part or sizes[axis]) for axis, part in _AXIS.findall(mesh[2]))
    return everywhere


def _received(kind: str, shapes: str, devices: int) -> int:
    """Compute received bytes from the shapes of a collective's result on one device."""
    size = 0
    for dtype, axes in _SHAPE.findall(shapes):
        bits = re.search(r"\d+", dtype)  # from the dtype's name: bf16, c128; pred takes a byte
        size += (int(bits[0]) // 8 if bits else 1) * math.prod(map(int, filter(None, axes.split(","))))
    if kind == "collective-permute":
        return size
    # The result of reduce-scatter is one device's share.
    times = {"reduce-scatter": devices, "all-reduce": 2}.get(kind, 1)
    return times * size * (devices - 1) // devices
