"""Draw the `decode` report: time per token and state by context, tokens per second by batch."""

from pathlib import Path
from typing import Any, NamedTuple

from based_jax import plot
from benchmarks.analysis import series
from benchmarks.decode.models import ATTENTION, BASED, CUDNN, LABELS, MAMBA
from benchmarks.decode.parts import BATCHES, CONTEXTS, GENERATE
from benchmarks.memory import MIB
from benchmarks.ops.figure import log_axes

STYLES = {
    BASED: (plot.color("Based"), "s", "-"),
    ATTENTION: (plot.color("Attention"), "o", "--"),
    CUDNN: ("#0072B2", "v", "--"),
    MAMBA: (plot.color("Mamba"), "D", "-."),
}
"""Colour, marker and line of each model."""


class Panel(NamedTuple):
    """One quantity against the swept value."""

    title: str
    part: str
    direction: str
    key: str
    unit: float
    y_label: str
    x_label: str


def panels(report: dict[str, Any]) -> list[Panel]:
    """Return the panels for which the report has numbers."""
    settings = report["settings"]
    batch = settings["context_batches"][0]
    at = CONTEXTS, f"batch {batch}"
    context, many = "context (tokens)", "batch (sequences at once)"
    throughput = f"throughput, {settings['tokens']:,} new tokens each"
    found = (
        Panel(f"time per token, batch {batch}", *at, "seconds_per_token", 1, "time per token", context),
        Panel("memory of the state", *at, "state_bytes", MIB, "state of a sequence (MiB)", context),
        Panel(throughput, BATCHES, GENERATE, "tokens_per_second", 1, "tokens per second", many),
    )
    return [panel for panel in found if any(row["part"] == panel.part for row in report["rows"])]


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report into `path`; also works on a report read from JSON."""
    settings, machine = report["settings"], report["machine"]
    drawn = panels(report)
    figure = plot.empty(3.5 * max(2, len(drawn)), 4.9)
    for number, panel in enumerate(drawn):
        axes = figure.add_subplot(1, len(drawn), number + 1)
        _draw_panel(axes, report, panel)
        if number == 0:
            handles, labels = axes.get_legend_handles_labels()
            plot.legend(figure, handles, labels, ncols=4)
    on_cpu = settings["device"] == "cpu"
    where = f"{machine['cpu']}, {machine['cores']} cores" if on_cpu else settings["device_kind"]
    counts = ", ".join(f"{c['label']} {c['parameters'] / 1e6:.3g} M" for c in report["candidates"])
    facts = (
        f"{counts} parameters, random weights, {settings['dtype']}, {where}. A line ends where a case would "
        f"take more than {settings['seconds_budget']:g} s or {settings['memory_limit_gib']:.2g} GiB."
    )
    plot.heading(figure, "What a generated token costs, against context and batch", facts)
    plot.save(figure, path)


def _draw_panel(axes: Any, report: dict[str, Any], panel: Panel) -> None:
    rows = [row for row in report["rows"] if row["part"] == panel.part]
    log_axes(axes, sorted({row["length"] for row in rows}), panel.title, panel.y_label, panel.x_label)
    last = max(
        (row["length"] for row in rows if row["pass"] == panel.direction and row.get(panel.key)), default=0
    )
    for name in (candidate["name"] for candidate in report["candidates"]):
        color, marker, line = STYLES[name]
        found = series(rows, name, panel.direction, panel.key)
        axes.plot(
            list(found),
            [value / panel.unit for value in found.values()],
            label=LABELS[name],
            color=color,
            marker=marker,
            linestyle=line,
            linewidth=2,
            markersize=5,
        )
        missed = [
            row
            for row in rows
            if (row["candidate"], row["pass"]) == (name, panel.direction)
            and row["status"] == "skipped"
            and row["length"] <= last
        ]
        if found and missed:
            first = min(missed, key=lambda row: row["length"])
            end = max(found), found[max(found)] / panel.unit
            axes.annotate(
                f"at {plot.count(first['length'])}: {first['reason']}",
                end,
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                color=color,
                fontsize=plot.SMALL,
            )
    if panel.key != "seconds_per_token":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
