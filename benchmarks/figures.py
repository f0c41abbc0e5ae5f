"""Draw the figures of `ops` and `decode` from their reports; `adopt` draws those of the kept ones."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from based_jax import plot
from benchmarks.analysis import series
from benchmarks.memory import MIB

Report = dict[str, Any]

OURS = "taylor_xla"
"""Candidate of `ops` with Based's colour."""

PASSES = {"forward": "forward", "forward_backward": "forward + backward"}


def draw(report: Report, path: Path) -> None:
    """Draw a report of `ops` or `decode` into `path`."""
    settings, machine = report["settings"], report["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores"
    if report["benchmark"] == "ops":
        title, panels = "Causal attention on a CPU: time against length", _ops(report)
        facts = "Based: Taylor attention by a chunked scan. "
        facts += f"Batch {settings['batch']}, {settings['heads']} heads of {settings['value_size']} channels"
    else:
        title, panels = "What a generated token costs, against context and batch", _decode(report)
        facts = ", ".join(f"{c['label']} {c['parameters'] / 1e6:.3g} M" for c in report["candidates"])
        facts += " parameters, random weights"
    facts += f", {settings['dtype']}, {where}."
    if any(row["status"] == "skipped" for row in report["rows"]):
        limits = f"{settings['memory_limit_gib']:.2g} GiB or {settings['seconds_budget']:g} s"
        facts += f" A line ends where a case would take more than {limits}."
    plot.draw(title, facts, list(panels), path)


def _ops(report: Report) -> Iterable[plot.Panel]:
    labels = {c["name"]: "Based" if c["name"] == OURS else c["label"] for c in report["candidates"]}
    for direction, title in PASSES.items():
        times = {labels[name]: series(report["rows"], name, direction) for name in labels}
        yield panel(title, times, y_label="time per call", y_tick=plot.duration)


def _decode(report: Report) -> Iterable[plot.Panel]:
    labels = {c["name"]: c["label"] for c in report["candidates"]}
    first = f"batch {report['settings']['context_batches'][0]}"
    many = {"x_label": "batch (sequences at once)", "y_label": "tokens per second", "y_tick": plot.count}
    for title, part, direction, key, unit, look in (
        (
            f"time per token, {first}",
            "contexts",
            first,
            "seconds_per_token",
            1,
            {"y_label": "time per token", "y_tick": plot.duration},
        ),
        ("memory of the state", "contexts", first, "state_bytes", MIB, {"y_label": "state (MiB)"}),
        (f"{report['settings']['tokens']:,} new tokens", "batches", "generate", "tokens_per_second", 1, many),
    ):
        rows = [row for row in report["rows"] if row["part"] == part]
        found = {label: series(rows, name, direction, key) for name, label in labels.items()}
        scaled = {label: {n: x / unit for n, x in points.items()} for label, points in found.items()}
        options: dict[str, Any] = {"x_label": "context (tokens)", "y_tick": plot.count, **look}
        yield panel(title, scaled, **options)


def panel(
    title: str,
    lines: Mapping[str, Mapping[int, float]],
    y_label: str,
    y_tick: Callable[[float], str],
    x_label: str = "length (tokens)",
) -> plot.Panel:
    """Return a panel with a line per family and ticks at the measured lengths, both axes logarithmic."""
    drawn = [plot.Line(family, sorted(points.items())) for family, points in lines.items()]
    ticks = sorted({length for points in lines.values() for length in points})
    return plot.Panel(
        title, x_label, drawn, y_label=y_label, y_limits=None, y_log=True, y_tick=y_tick, ticks=ticks
    )
