"""Count the bytes that the devices of a compiled program exchange, from the program's text.

An instruction inside a loop counts once per iteration, where the compiler knows their number. Bytes are those
that one device receives in ring algorithms: (n - 1) / n of the whole array for an all-gather or
reduce-scatter over n devices, twice that for an all-reduce, all of it for a permute.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

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
