"""Draw the `mixers` report: time of forward and backward against length, labels at the lines' ends."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from based_jax import plot
from benchmarks.analysis import series
from benchmarks.ops.candidates import FORWARD_BACKWARD
from benchmarks.ops.figure import facts, log_axes


class Group(NamedTuple):
    """Mixers drawn alike, grouped by their state."""

    label: str
    line: Any
    """line style of matplotlib"""


CONSTANT = Group("state of constant size", "-")
GROWING = Group("state grows with the text", "--")
NONE = Group("no state", ":")
GROUPS = (CONSTANT, GROWING, NONE)


class Family(NamedTuple):
    """Mixers of one colour, grouped by their computation."""

    label: str
    color: str
    mixers: tuple[str, ...]


BASED = Family("Based's layers", "#D55E00", ("linear_attention", "sliding_window", "gated_conv"))
OTHER = Family("other", "#7F7F7F", ())
FAMILIES = (
    BASED,
    Family(
        "softmax attention", "#222222", ("attention", "blocked_window", "bigbird", "nystrom", "scatterbrain")
    ),
    Family("state-space models", "#009E73", ("h3", "liquid_s4", "mamba", "mamba2")),
    Family(
        "linear recurrences",
        "#6A3D9A",
        ("gla", "retnet", "rwkv4", "rwkv5", "rwkv7", "delta_net", "gated_delta_net"),
    ),
    Family(
        "convolutions",
        "#0072B2",
        ("base_conv", "hyena", "long_conv", "short_conv", "input_conv", "conv_basis"),
    ),
    OTHER,
)

LABEL_GAP = 0.032
"""Least distance of two labels, as a share of the axes' height."""


def group_of(rows: list[dict[str, Any]]) -> Group:
    """Return the group of the mixer that `rows` belong to."""
    sizes = [row["state_bytes"] for row in sorted(rows, key=lambda row: row["length"])]
    if not sizes or sizes[0] is None:
        return NONE
    return GROWING if sizes[-1] > sizes[0] else CONSTANT


def spread(heights: list[float], gap: float) -> list[float]:
    """Spread ascending heights at least `gap` apart within [0, 1]; clusters keep their mean."""
    clusters: list[list[float]] = []
    for height in heights:
        clusters.append([height])
        while len(clusters) > 1 and _low(clusters[-1], gap) < _high(clusters[-2], gap) + gap:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    return [_low(cluster, gap) + gap * i for cluster in clusters for i in range(len(cluster))]


def _low(cluster: list[float], gap: float) -> float:
    """Return the lowest label of a cluster, whose labels are `gap` apart around the mean."""
    extent = gap * (len(cluster) - 1)
    return max(0.0, min(1.0 - extent, math.fsum(cluster) / len(cluster) - extent / 2))


def _high(cluster: list[float], gap: float) -> float:
    return _low(cluster, gap) + gap * (len(cluster) - 1)


def family_of(name: str) -> Family:
    """Return the family of a mixer."""
    return next((family for family in FAMILIES if name in family.mixers), OTHER)


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report's timings into `path`; also works on a report read from JSON."""
    settings = report["settings"]
    figure = plot.empty(9, 9)
    axes = figure.subplots()
    log_axes(axes, settings["lengths"], y_label="time per call, forward + backward")
    lines, groups = [], set()
    for candidate in report["candidates"]:
        name = candidate["name"]
        times = series(report["rows"], name, FORWARD_BACKWARD)
        if not times:
            continue
        family = family_of(name)
        group = group_of([row for row in report["rows"] if row["candidate"] == name])
        width = 2.8 if family == BASED else 1.3
        axes.plot(
            list(times),
            list(times.values()),
            color=family.color,
            linestyle=group.line,
            marker="o",
            markersize=3.5,
            linewidth=width,
            zorder=2 + width,
        )
        lines.append((name, times, family))
        groups.add(group)
    _label(axes, lines)
    _legend(figure, {family for *_, family in lines}, groups)
    work = f"d_model {settings['d_model']}"
    plot.heading(figure, "Sequence mixers on a CPU: time against length", facts(report, work))
    plot.save(figure, path)


def _legend(figure: Any, families: set[Family], groups: set[Group]) -> None:
    """Add entries for colours, then lines."""
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], color=family.color, linewidth=2.8 if family == BASED else 1.6, label=family.label)
        for family in FAMILIES
        if family in families
    ] + [
        Line2D([], [], color="#555555", linestyle=group.line, label=group.label)
        for group in GROUPS
        if group in groups
    ]
    if entries:
        plot.legend(figure, handles=entries, ncols=3)


def _label(axes: Any, lines: list[tuple[str, dict[int, float], Family]]) -> None:
    """Write names right of the axes, near each line's end; above lines that end early."""
    if not lines:
        return
    low, high = (math.log(y) for y in axes.get_ylim())
    last = max(max(times) for _, times, _ in lines)
    leader: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.6, "shrinkB": 3}
    whole = sorted((line for line in lines if max(line[1]) == last), key=lambda line: line[1][last])
    ends = [(math.log(times[last]) - low) / (high - low) for _, times, _ in whole]
    for (name, times, family), height in zip(whole, spread(ends, LABEL_GAP), strict=True):
        axes.annotate(
            name,
            (last, times[last]),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=family.color,
            fontsize=plot.SMALL,
            fontweight="bold" if family == BASED else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={**leader, "color": family.color, "relpos": (0, 0.5)},
        )
    for name, times, family in lines:
        if max(times) < last:
            end = max(times), times[max(times)]
            look = {
                "textcoords": "offset points",
                "color": family.color,
                "fontsize": plot.SMALL,
                "ha": "right",
            }
            axes.annotate(name, end, xytext=(-12, 24), arrowprops={**leader, "color": family.color}, **look)
