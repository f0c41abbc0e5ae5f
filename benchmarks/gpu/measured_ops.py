"""The pages' tables of the ops on GPUs; see `adopt`."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import tables
from benchmarks.gpu.choices import AXES, LAST, PAIRS
from benchmarks.gpu.measured import Device, Found, Row
from benchmarks.tables import MISSING, significant

CANDIDATES = {
    "mosaic": "ours, Mosaic",
    "pallas": "ours, Pallas",
    "triton": "ours, jax-triton",
    "xla": "ours, XLA",
    "cumulative_sum": "cumulative sum",
    "fla_parallel_based": "fla, parallel",
    "fla_fused_chunk_based": "fla, fused chunk",
    "softmax_cudnn": "softmax, cuDNN",
}
"""Candidates of `benchmarks gpu` -> headings."""

REMOVED = "triton"
"""Candidate of attention in older reports, whose kernels are gone: slower than Pallas everywhere."""


def attention(device: Device) -> Iterator[str]:
    """Time of causal attention by size."""
    forward, backward = (_with_torch(device, section) for section in ("forward", "backward"))
    hopper = device.rows("mosaic_forward")
    apart = {key: row for key, row in hopper.items() if (key[0], "mosaic") not in forward}
    if forward or backward or apart:
        yield (
            f"{device.source('gpu')}, bfloat16, 16 heads, Taylor attention with K = 16 and V = 64, softmax "
            "attention with 64 channels; B rows of N tokens; milliseconds, medians, in turns."
        )
    yield from _titled("Forward:", forward)
    yield from _titled("Forward and backward:", backward)
    yield from _titled("Forward, the kernels for Hopper and the portable ones in turns:", apart)
    if any(what.startswith("fla_") for _, what in forward):
        yield "fla: flash-linear-attention, called from torch in a process of its own, launches included."


def _with_torch(device: Device, section: str) -> Found:
    """Return a section's rows with those of flash-linear-attention, which has its own process."""
    theirs = {
        (step.removeprefix(f"{section} "), what): row
        for (step, what), row in device.rows("torch").items()
        if step.startswith(f"{section} ") and what.startswith("fla_")
    }
    return {**device.rows(section), **theirs}


def _titled(title: str, rows: Found) -> Iterator[str]:
    """Yield a table of milliseconds by size and candidate, unless there is no row."""
    names = [name for name in CANDIDATES if any(name == what for _, what in rows) and name != REMOVED]
    steps = sorted({step for step, _ in rows}, key=_size)
    body = [[step, *(milliseconds(rows.get((step, name))) for name in names)] for step in steps]
    if body:
        yield title
        yield tables.table(["", *(CANDIDATES[name] for name in names)], body)


def _size(step: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", step))


def milliseconds(row: Row | None, scale: float = 1e3) -> str:
    """Return a row's time for a table, in milliseconds or other units per second."""
    if row is None:
        return MISSING
    value = scale * row["seconds"]
    return f"{value:.3f}" if value < 1 else significant(value)


def steps(device: Device) -> Iterator[str]:
    """Time of the decoding steps by batch."""
    if not (device.rows("decode") or device.rows("window")):
        return
    yield (
        f"{device.source('gpu')}, bfloat16, 16 heads of 64 channels (Taylor features of 16), a full window "
        "of 64 keys without rotary positions; microseconds of a step in a loop inside one program, by batch:"
    )
    for title, section in (("`taylor_step`", "decode"), ("`window_step`", "window")):
        found = {
            (what.removesuffix(" loop"), row.get("state", "float32"), row["batch"]): row
            for (_, what), row in device.rows(section).items()
            if what.endswith(" loop")
        }
        batches = sorted({batch for *_, batch in found})
        known = {(dtype, what) for what, dtype, _ in found}
        kinds = [kind for kind in itertools.product(("float32", "bfloat16"), CANDIDATES) if kind in known]
        body = [
            [
                CANDIDATES[what] + (", bfloat16 state" if dtype == "bfloat16" else ""),
                *(milliseconds(found.get((what, dtype, batch)), 1e6) for batch in batches),
            ]
            for dtype, what in kinds
        ]
        if body:
            yield tables.table([title, *(f"{batch:,}" for batch in batches)], body)


def checks(device: Device) -> Iterator[str]:
    """How many checks of the kernels passed."""
    found = [*device.rows("correctness").values(), *device.rows("mosaic").values()]
    if not found:
        return
    passed = sum(row["status"] == "passed" for row in found)
    failed = len(found) - passed
    text = f"{passed} of {device.checks()} checks of kernels passed, {failed} failed"
    links = "[times](docs/gpu.md#on-a-gpu), [decoding](docs/decoding.md#on-a-gpu)"
    yield f"- **{device.source('gpu')}**: {text}, the others were not made ({links})."


KERNELS = {
    "attention": "taylor_attention",
    "window attention": "window_attention",
    "step": "taylor_step",
    "window": "window_step",
    "scan": "selective_scan",
    "delta rule": "linear_recurrence",
    "recurrence": "linear_recurrence",
    "channel delta rule": "linear_recurrence",
    "channel recurrence": "linear_recurrence",
}
"""Beginning of a check's name -> kernel."""


def errors(device: Device) -> Iterator[str]:
    """Largest errors of the kernels against float64, by kernel and dtype."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for (step, _), row in {**device.rows("correctness"), **device.rows("mosaic")}.items():
        if found := re.match(rf"({'|'.join(KERNELS)}) [EKLW]\d.*?\b(bfloat16|float16|float32)\b", step):
            precision = ' at "highest"' if "highest" in step else ""
            backend = ", Mosaic forward" if step.endswith("mosaic") else ""
            groups.setdefault((f"`{KERNELS[found[1]]}`{backend}", found[2] + precision), []).append(row)
    if not groups:
        return
    yield f"{device.source('gpu')}:"
    body = []
    for names, rows in sorted(groups.items()):
        values = [
            (name, math.inf if value is None else value)
            for row in rows
            for name, value in row["errors"].items()
        ]
        gradients = [value for name, value in values if name.startswith("d")]
        results = [value for name, value in values if not name.startswith("d")]
        largest = [f"{max(found):.1e}" if found else MISSING for found in (results, gradients)]
        body.append([*names, str(len(rows)), *largest, f"{rows[0]['tolerance']:g}"])
    heads = ["kernel", "inputs", "checks", "results", "gradients", "tolerance"]
    yield tables.table(heads, body, left=2)


def defaults(backends: Mapping[str, Sequence[Row]]) -> str:
    """Return what None picks where a measurement decides; `backends` has the table of each op."""
    rows = []
    for op in AXES:
        pair = next(pair for pair in PAIRS.values() if pair.op == op)
        for row in backends[op]:
            when = ", ".join(f"{name} {_range(value)}" for name, value in row["when"].items())
            other = pair.kernel if row["backend"] == pair.plain else pair.plain
            names = (f'`"{name}"`' for name in (row["backend"], other))
            rows.append([f"`{op}`", row["device"], when.replace("_", " "), *names])
    return tables.table(["op", "compute capability", "where", "`None` picks", "instead of"], rows, left=5)


def _range(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    low, high = value
    return f"from {low:,}" if high == LAST else f"{low:,} to {high:,}"
