"""Draw the figures of the pages from kept reports of `ops`, `decode` and `gpu`; see `adopt`."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from based_jax import plot
from based_jax.experiments.mqar_tradeoff import STUDY, published_points
from based_jax.experiments.results import STATE_AXIS, best, lines, read, state_bytes
from benchmarks.analysis import series
from benchmarks.gpu.measured import RESULTS, devices, kept
from benchmarks.machine import MIB
from benchmarks.report import Report
from benchmarks.study import FORWARD_BACKWARD

OPS = {"taylor_xla": "Based", "dot_product_attention": "Attention", "torch_sdpa": "Attention (torch's fused)"}
"""Candidates of `ops` in the figure -> families, so that all panels have one legend."""

ON_GPU = {
    "pallas": "Based",
    "mosaic": "Based",
    "xla": "Based (without kernels)",
    "softmax_cudnn": "Attention (cuDNN)",
}
"""Candidates of `gpu` in the figure -> families; of two for one length the later one."""


PANEL_BATCH = 4
"""Rows of the GPUs' panel: Based, Figure 5, has its lengths at this batch."""


STUDIED = "results/mqar/tradeoff"
"""Folder of a checkout with the results of `based-jax experiments mqar-tradeoff`."""

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
    labels = {c["name"]: "Based" if c["name"] == "taylor_xla" else c["label"] for c in report["candidates"]}
    for direction, title in PASSES.items():
        times = {labels[name]: series(report["rows"], name, direction) for name in labels}
        yield panel(title, times, "time per call", plot.duration)


def _decode(report: Report) -> Iterable[plot.Panel]:
    labels = {c["name"]: c["label"] for c in report["candidates"]}
    first = f"batch {report['settings']['context_batches'][0]}"

    def lines(part: str, direction: str, key: str, unit: float = 1) -> dict[str, dict[int, float]]:
        rows = [row for row in report["rows"] if row["part"] == part]
        found = {label: series(rows, name, direction, key) for name, label in labels.items()}
        return {label: {n: x / unit for n, x in points.items()} for label, points in found.items()}

    context = "context (tokens)"
    times = lines("contexts", first, "seconds_per_token")
    yield panel(f"time per token, {first}", times, "time per token", plot.duration, context)
    states = lines("contexts", first, "state_bytes", MIB)
    yield panel("memory of the state", states, "state (MiB)", plot.count, context)
    title = f"{report['settings']['tokens']:,} new tokens"
    speeds = lines("batches", "generate", "tokens_per_second")
    yield panel(title, speeds, "tokens per second", plot.count, "batch (sequences at once)")


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


def draw_overview(tree: Path, path: Path) -> None:
    """Draw a checkout's results into `path`: the best models of a study, timings of a CPU, a panel per GPU.

    The study's families are those of Based, Figure 2.
    """
    scale = json.loads((tree / STUDIED / "study.json").read_text())["scale"]
    shown = published_points()
    study = [row for row in best(read(tree / STUDIED / "results.jsonl")) if row["family"] in shown]
    report = json.loads((tree / RESULTS / "cpu/ops.json").read_text())
    gpus = [device for device in devices(kept({}, tree)) if device.rows("backward")]
    settings, machine = report["settings"], report["machine"]
    times = {family: series(report["rows"], name, FORWARD_BACKWARD) for name, family in OPS.items()}
    panels = [
        plot.Panel(
            "recall against state: models trained on MQAR",
            lines=lines(study, state_bytes, frontier=True),
            **STATE_AXIS,
        ),
        panel("time against length, CPU: forward + backward", times, "time per call", plot.duration),
    ]
    for device in gpus:
        rows = [row for row in device.rows("backward").values() if row["batch"] == PANEL_BATCH]
        found: dict[str, dict[int, float]] = {}
        for name, family in ON_GPU.items():
            times = {row["length"]: row["seconds"] for row in rows if row["what"] == name}
            found.setdefault(family, {}).update(sorted(times.items()))
        if any(found.values()):
            panels.append(panel("the same on a GPU", found, "time per call", plot.duration))
    on_gpus = (
        f"one op on {device.source('gpu')}, bfloat16, {PANEL_BATCH} rows of 16 heads" for device in gpus
    )
    limits = f"{settings['memory_limit_gib']:.2g} GiB or {settings['seconds_budget']:g} s"
    facts = (
        f"Left, the families of Based, Figure 2, trained here. {STUDY.about[scale]}; lines join what beats "
        "every smaller state. Middle: Based's Taylor attention beside softmax attention "
        f"(jax.nn.dot_product_attention and torch's), {machine['cpu']}, {machine['cores']} cores, "
        f"{settings['dtype']}; a line ends at the limit of {limits}. Right: {'; '.join(on_gpus)}."
    )
    plot.draw("Recall against state, and time against length", facts, panels, path)
