"""The `decode` report as a figure: time per token and state by context, tokens per second by batch."""

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.analysis import series
from benchmarks.decode_models import ATTENTION, BASED, CUDNN, LABELS, MAMBA
from benchmarks.decode_parts import BATCHES, CONTEXTS, GENERATE
from benchmarks.figure import log_axes
from benchmarks.memory import MIB

STYLES = {
    BASED: ("#0072B2", "o", "-"),
    ATTENTION: ("#D55E00", "^", "--"),
    CUDNN: ("#E69F00", "v", "--"),
    MAMBA: ("#009E73", "s", "-."),
}
"""Colour, marker and line of each model."""


class Panel(NamedTuple):
    """One quantity against what was swept."""

    title: str
    part: str
    direction: str
    key: str
    unit: float
    label: str
    """of what was swept"""


def panels(report: dict[str, Any]) -> list[Panel]:
    """Those that the report has numbers for."""
    settings = report["settings"]
    batch = settings["context_batches"][0]
    behind = CONTEXTS, f"batch {batch}"
    context, many = "context (tokens)", f"batch, {settings['tokens']:,} new tokens"
    found = (
        Panel(f"time per token, batch {batch}", *behind, "seconds_per_token", 1, context),
        Panel("state of a sequence, MiB", *behind, "state_bytes", MIB, context),
        Panel("tokens per second", BATCHES, GENERATE, "tokens_per_second", 1, many),
    )
    return [panel for panel in found if any(row["part"] == panel.part for row in report["rows"])]


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report into `path`; works on a report read back from JSON, too."""
    from matplotlib.figure import Figure  # without pyplot: no windows, no global state

    settings, machine = report["settings"], report["machine"]
    drawn = panels(report)
    figure = Figure(figsize=(4.2 * max(2, len(drawn)), 4.6), dpi=160, layout="constrained")
    for number, panel in enumerate(drawn):
        axes = figure.add_subplot(1, len(drawn), number + 1)
        _draw_panel(axes, report, panel)
        if number == 0:
            handles, labels = axes.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    on_cpu = settings["device"] == "cpu"
    where = f"{machine['cpu']}, {machine['cores']} cores" if on_cpu else settings["device_kind"]
    counts = ", ".join(f"{c['label']} {c['parameters'] / 1e6:.3g} M" for c in report["contestants"])
    figure.suptitle(
        f"Decoding: {counts} parameters, {settings['dtype']}, {where}", fontsize=10.5, x=0.01, ha="left"
    )
    figure.savefig(path)


def _draw_panel(axes: Any, report: dict[str, Any], panel: Panel) -> None:
    rows = [row for row in report["rows"] if row["part"] == panel.part]
    log_axes(axes, sorted({row["length"] for row in rows}))
    for name in (contestant["name"] for contestant in report["contestants"]):
        color, marker, line = STYLES[name]
        found = series(rows, name, panel.direction, panel.key)
        axes.plot(
            list(found), [value / panel.unit for value in found.values()], label=LABELS[name], color=color,
            marker=marker, linestyle=line, linewidth=2, markersize=5,
        )  # fmt: skip
    if panel.key != "seconds_per_token":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.set_xlabel(panel.label)
    axes.set_title(panel.title, fontsize=11, loc="left")
