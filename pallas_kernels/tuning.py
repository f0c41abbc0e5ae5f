"""Block sizes by GPU and shape: one JSON table per op, measured by `benchmarks gpu --sections tune`.

A table is a list of rows ``{"device": D, "when": {name: value, ...}, "variant": {...}}``, where D is the
compute capability of a family of GPUs, such as "9.0", or "any". The first row whose device matches and whose
conditions hold (a number or a string: equal; a pair: lowest and highest) gives the variant. Rows of device
"any" come last: the safe default, chosen from the compiler's register report. A row with ``"shared": BYTES``
needs a GPU with that much shared memory per program; rows without it fit all GPUs (`devices.SMALLEST`). The
tests compile all of them (`tests/kernels/test_devices.py`). A second table has the ops' fastest backends;
`adopt` writes both from measurements, but for the backends of kernels that run in models alone.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pallas_kernels
from pallas_kernels import devices
from pallas_kernels.launch import is_interpreted

Variant = TypeVar("Variant")


@functools.cache
def table(op: str) -> list[dict[str, Any]]:
    """Return the rows of one op's table, in the order in which they are tried."""
    return json.loads(path(op).read_text())


@functools.cache
def backends(op: str) -> list[dict[str, Any]]:
    """Return rows ``{"device": D, "when": {...}, "backend": NAME}``: the backends measured to be faster."""
    return json.loads(path(op, "backends.json").read_text())


def fastest(op: str, *, capability: str | None = None, unmeasured: str = "pallas", **facts: int | str) -> str:
    """Return the backend of the first row of `backends` that matches, or `unmeasured` if there is none.

    Args:
        capability: compute capability of the GPU; None for that of the target GPU.
        facts: values that the rows' conditions refer to.
    """
    capability = target() if capability is None else capability
    for row in backends(op):
        if row["device"] == capability and all(_holds(w, facts[name]) for name, w in row["when"].items()):
            return row["backend"]
    return unmeasured


def was_faster(op: str) -> bool:
    """Return whether a kernel was measured to be faster than XLA on this family; True in the interpreter."""
    return is_interpreted() or fastest(op, unmeasured="xla") == "pallas"


def target() -> str:
    """Return the compute capability of the target GPU, such as "9.0"; "any" if there is none."""
    gpu = devices.current()
    return (gpu and gpu.capability) or "any"


def choose(op: str, kind: type[Variant], **facts: Any) -> Variant:
    """Return the variant for a call with these `facts` (sizes, dtype name, pass); see `row_number`."""
    return kind(**table(op)[row_number(op, **facts)]["variant"])


def row_number(
    op: str, *, capability: str | None = None, shared_memory: int | None = None, **facts: Any
) -> int:
    """Return the number of the first row of a table that matches.

    Args:
        capability: compute capability of the GPU; None for that of the target GPU.
        shared_memory: bytes of shared memory per program; None for that of the target GPU.
        facts: values that the rows' conditions refer to.

    Raises:
        LookupError: no row matches; every table ends with rows for "any".
    """
    capability = target() if capability is None else capability
    offered = devices.shared_memory() if shared_memory is None else shared_memory
    for number, row in enumerate(table(op)):
        if (
            row["device"] in (capability, "any")
            and row.get("shared", 0) <= offered
            and all(_holds(wanted, facts[name]) for name, wanted in row["when"].items())
        ):
            return number
    raise LookupError(f"no variant of {op} in its tuning table for {capability}, {offered} bytes and {facts}")


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
