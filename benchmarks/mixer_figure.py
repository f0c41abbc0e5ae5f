"""The `mixers` report as a figure: time of forward and backward against length, labels at the lines' ends."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.analysis import series
from benchmarks.contestants import FORWARD_BACKWARD
from benchmarks.figure import log_axes


class Group(NamedTuple):
    """Mixers that are drawn alike, by what they remember."""

    label: str
    colors: str
    """a colour map of matplotlib, whose light end is left out"""
    line: str


CONSTANT = Group("state of constant size", "winter", "-")
GROWING = Group("state grows with the text", "autumn", "--")
NONE = Group("no state", "copper", ":")
GROUPS = (CONSTANT, GROWING, NONE)

LABEL_GAP = 0.032
"""Least distance of two labels, as a share of the axes' height."""


def group_of(rows: list[dict[str, Any]]) -> Group:
    """The group of the mixer that `rows` belong to."""
    sizes = [row["state_bytes"] for row in sorted(rows, key=lambda row: row["length"])]
    if not sizes or sizes[0] is None:
        return NONE
    return GROWING if sizes[-1] > sizes[0] else CONSTANT


def spread(heights: list[float], gap: float) -> list[float]:
    """Ascending heights at least `gap` apart within [0, 1]: those too close share out around their mean."""
    clusters: list[list[float]] = []
    for height in heights:
        clusters.append([height])
        while len(clusters) > 1 and _low(clusters[-1], gap) < _high(clusters[-2], gap) + gap:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    return [_low(cluster, gap) + gap * i for cluster in clusters for i in range(len(cluster))]


def _low(cluster: list[float], gap: float) -> float:
    """Lowest label of a cluster, whose labels stand `gap` apart around the mean."""
    extent = gap * (len(cluster) - 1)
    return max(0.0, min(1.0 - extent, math.fsum(cluster) / len(cluster) - extent / 2))


def _high(cluster: list[float], gap: float) -> float:
    return _low(cluster, gap) + gap * (len(cluster) - 1)


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report's timings into `path`; works on a report read back from JSON, too."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure  # without pyplot: no windows, no global state

    settings, machine = report["settings"], report["machine"]
    figure = Figure(figsize=(9.6, 8.0), dpi=160, layout="constrained")
    axes = figure.subplots()
    log_axes(axes, settings["lengths"])
    lines = []
    for group in GROUPS:
        members = []
        for contestant in report["contestants"]:
            name = contestant["name"]
            times = series(report["rows"], name, FORWARD_BACKWARD)
            rows = [row for row in report["rows"] if row["contestant"] == name]
            if times and group_of(rows) == group:
                members.append((name, times))
        members.sort(key=lambda member: member[1][max(member[1])])
        for i, (name, times) in enumerate(members):
            color = colormaps[group.colors](0.6 * i / max(len(members) - 1, 1))
            axes.plot(
                list(times), list(times.values()), color=color, linestyle=group.line, marker="o",
                markersize=3.5, linewidth=1.6, label=None if i else group.label,
            )  # fmt: skip
            lines.append((name, times, color))
    _label(axes, lines)
    if lines:
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.set_ylabel("forward + backward, time per call")
    figure.suptitle("Sequence mixers on a CPU: time against length\n", fontsize=13, fontweight="bold", x=0.01,
                    ha="left")  # fmt: skip
    facts = (
        f"{machine['cpu']}, {machine['cores']} cores, {settings['dtype']}, batch {settings['batch']}, "
        f"d_model {settings['d_model']}"
    )
    if any(row["status"] == "skipped" for row in report["rows"]):
        facts += (
            f"; a line ends where a call needs more than {settings['memory_limit_gib']:.2g} GiB "
            f"or {settings['seconds_budget']:g} s"
        )
    figure.text(0.01, 0.955, facts, fontsize=9, color="#555555", va="center")
    figure.savefig(path)


def _label(axes: Any, lines: list[tuple[str, dict[int, float], Any]]) -> None:
    """Names right of the axes, at the height of each line's end or near it."""
    if not lines:
        return
    low, high = (math.log(y) for y in axes.get_ylim())
    leader: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.6, "relpos": (0, 0.5), "shrinkB": 3}
    lines = sorted(lines, key=lambda line: line[1][max(line[1])])
    ends = [(math.log(times[max(times)]) - low) / (high - low) for _, times, _ in lines]
    for (name, times, color), height in zip(lines, spread(ends, LABEL_GAP), strict=True):
        axes.annotate(
            name, (max(times), times[max(times)]), xytext=(1.03, height), textcoords="axes fraction",
            color=color, fontsize=9, va="center", annotation_clip=False,
            arrowprops={**leader, "color": color},
        )  # fmt: skip
