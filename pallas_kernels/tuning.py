"""Block sizes by device and shape: one JSON table per op, measured by `python -m pallas_kernels.tune`.

A table is a list of rows ``{"device": DEVICE, "when": {name: value, ...}, "variant": {...}}``; DEVICE is the
kind of a GPU, a compute capability such as "9.0", or "any". The first row whose device matches and whose
conditions hold (a number or a string: equal; a pair: lowest and highest) gives the variant. Rows of device
"any" come last: the safe default, chosen from the compiler's
register report. A row with ``"shared": BYTES`` needs a GPU with that much shared memory per program; rows
without it fit all GPUs (`devices.SMALLEST`), which `python -m benchmarks fit` checks with the compiler.
A second table, of backends, is from `python -m pallas_kernels.backends`; `adopt` writes both.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pallas_kernels
from pallas_kernels import devices

Variant = TypeVar("Variant")


@functools.cache
def table(op: str) -> list[dict[str, Any]]:
    """Return the rows of one op's table, in the order in which they are tried."""
    return json.loads(path(op).read_text())


@functools.cache
def backends(op: str) -> list[dict[str, Any]]:
    """Return rows ``{"device": KIND, "when": {...}, "backend": NAME}``: the fastest measured backends."""
    return json.loads(path(op, "backends.json").read_text())


def fastest(op: str, *, device: str | None = None, **facts: int | str) -> str:
    """Return the backend of the first row of `backends` that matches, or "pallas", which any GPU runs."""
    device = device_kind() if device is None else device
    for row in backends(op):
        if row["device"] == device and all(_holds(w, facts[name]) for name, w in row["when"].items()):
            return row["backend"]
    return "pallas"


def device_kind() -> str:
    """Return the kind of the target GPU, such as "NVIDIA H200"; "any" without one."""
    gpu = devices.current()
    return "any" if gpu is None else gpu.kind


def matching(device: str) -> tuple[str, ...]:
    """Return the devices of rows that hold for a device: itself, its capability, "any"."""
    family = devices.family(device)
    return (device, *([] if family is None else [family.capability]), "any")


def choose(op: str, kind: type[Variant], **facts: Any) -> Variant:
    """Return the variant for a call with these `facts` (sizes, dtype name, pass); see `row_number`."""
    return kind(**table(op)[row_number(op, **facts)]["variant"])


def row_number(op: str, *, device: str | None = None, shared_memory: int | None = None, **facts: Any) -> int:
    """Return the number of the first row of a table that matches.

    Args:
        device: kind of GPU; None for the current one.
        shared_memory: bytes of shared memory per program; None for that of the target GPU.
        facts: values that the rows' conditions refer to.

    Raises:
        LookupError: no row matches; every table ends with rows for "any".
    """
    device = device_kind() if device is None else device
    names = matching(device)
    offered = devices.shared_memory() if shared_memory is None else shared_memory
    for number, row in enumerate(table(op)):
        if (
            row["device"] in names
            and row.get("shared", 0) <= offered
            and all(_holds(wanted, facts[name]) for name, wanted in row["when"].items())
        ):
            return number
    raise LookupError(f"no variant of {op} in its tuning table for {device}, {offered} bytes and {facts}")


def path(op: str, name: str = "tuning.json") -> Path:
    """Return the file of a table, in the imported package."""
    return Path(pallas_kernels.__path__[0], op, name)


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return JSON with one row per line, which gives readable diffs."""
    if not rows:
        return "[]\n"
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


def _holds(wanted: Any, value: int | str) -> bool:
    return wanted[0] <= value <= wanted[1] if isinstance(wanted, list) else wanted == value
