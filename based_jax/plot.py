"""Panels as a PNG, in one style: our points filled and joined, the papers' hollow and dashed, one legend."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

FAMILIES: tuple[str, ...] = (
    "Attention", "Based", "Sliding window", "Mamba", "Mamba-2", "GLA", "DeltaNet", "Gated DeltaNet", "RWKV-7",
    "H3", "Hyena", "RWKV-4", "RetNet", "BaseConv", "BigBird", "ScatterBrain", "Nystromformer",
)  # fmt: skip
"""In this order they take the colours, so that a family looks the same in every figure."""

_COLORS = (
    "#222222", "#D55E00", "#0072B2", "#009E73", "#56B4E9", "#E69F00", "#CC79A7", "#882255", "#6A3D9A",
    "#999933", "#8C564B", "#44AA99", "#1F3B73", "#E377C2", "#7F7F7F", "#17BECF", "#BCBD22",
)  # fmt: skip
_MARKERS = "osDv^P*Xp<>hd8HoD"
_DASHES = (0, (3, 2))


@dataclass(frozen=True)
class Line:
    """The points of one family: a kind of mixer, a model, or a text."""

    family: str
    points: Sequence[tuple[float, float]]
    published: bool = False
    """whether they are a paper's"""
    frontier: bool = False
    """join only the points that beat all with a smaller x, not all of them"""

    @property
    def path(self) -> list[tuple[float, float]]:
        """The points that are joined, from left to right."""
        ordered = sorted(self.points)
        if not self.frontier:
            return ordered
        return [point for i, point in enumerate(ordered) if all(y < point[1] for _, y in ordered[:i])]


@dataclass(frozen=True)
class Panel:
    """One pair of axes, x in logarithms."""

    title: str
    x_label: str
    lines: Sequence[Line]
    y_label: str = "accuracy"
    y_limits: tuple[float, float] | None = (-0.03, 1.04)
    """None shows all points"""
    y_log: bool = False
    """whether y is in logarithms too"""
    is_bytes: bool = False
    """x ticks in B, KB, MB"""
    ticks: Sequence[float] = ()
    """x ticks, where the powers of two in sight would be too many or too few"""


@dataclass(frozen=True)
class Bars:
    """One value of each family, side by side."""

    title: str
    x_label: str
    values: Mapping[str, float]


def missing() -> str | None:
    """Why there can be no figure here; None if there can."""
    if importlib.util.find_spec("matplotlib"):
        return None
    return "no figure: it needs matplotlib (pip install 'based-jax[plot]')"


def draw(
    title: str, facts: str, panels: Sequence[Panel | Bars], path: Path, columns: int | None = None
) -> None:
    """Draw the panels that have points into `path`, `columns` side by side (default all)."""
    from matplotlib.figure import Figure  # without pyplot: no windows, no global state

    shown = [panel for panel in panels if _families(panel)]
    columns = min(columns or len(shown), len(shown)) or 1
    height = -(-len(shown) // columns) or 1
    figure = Figure(figsize=(0.6 + 4.3 * columns, 1.5 + 3.4 * height), dpi=150, layout="constrained")
    scales = {(panel.y_label, panel.y_log) if isinstance(panel, Panel) else panel.title for panel in shown}
    is_shared = len(scales) == 1
    axes = figure.subplots(height, columns, squeeze=False, sharey=is_shared).flat
    styles = _styles([family for panel in shown for family in _families(panel)])
    for panel, ax in zip(shown, axes, strict=False):
        if isinstance(panel, Bars):
            _bars(ax, panel, styles)
        else:
            _panel(ax, panel, styles)
            if not is_shared or ax.get_subplotspec().is_first_col():
                ax.set_ylabel(panel.y_label, fontsize=9.5)
        _frame(ax, panel)
    for ax in list(axes)[len(shown) :]:
        ax.set_axis_off()
    _legend(figure, shown, styles, ncols=round(2.5 * columns))
    figure.suptitle(f"{title}\n", fontsize=13, fontweight="bold", x=0.01, ha="left")
    inches = figure.get_size_inches()[1]
    figure.text(0.01, 1 - 0.42 / inches, facts, fontsize=8.5, color="#555555", va="center")
    figure.savefig(path)


def _families(panel: Panel | Bars) -> list[str]:
    """Whose points a panel has."""
    if isinstance(panel, Bars):
        return list(panel.values)
    return [line.family for line in panel.lines] if any(line.points for line in panel.lines) else []


def _styles(families: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker; families beyond the known take what those leave."""
    looks = dict(zip(FAMILIES, zip(_COLORS, _MARKERS, strict=True), strict=True))
    taken = {looks[family] for family in families if family in looks}
    others = cycle([look for look in looks.values() if look not in taken] or list(looks.values()))
    return {family: looks.get(family) or next(others) for family in dict.fromkeys(families)}


def _legend(
    figure: Any, panels: Sequence[Panel | Bars], styles: dict[str, tuple[str, str]], ncols: int
) -> None:
    """One entry for each family, and one that says how the papers' points look."""
    from matplotlib.lines import Line2D

    drawn = [line for panel in panels if isinstance(panel, Panel) for line in panel.lines]
    theirs = {line.family for line in drawn} - {line.family for line in drawn if not line.published}
    entries = []
    for family, (color, marker) in styles.items():
        face, dashes = ("white", _DASHES) if family in theirs else (color, "-")
        entries.append(
            Line2D([], [], color=color, marker=marker, markerfacecolor=face, linestyle=dashes, label=family)
        )
    if any(line.published for line in drawn):
        look: dict[str, Any] = {"color": "#777777", "marker": "o", "markerfacecolor": "white"}
        entries.append(Line2D([], [], linestyle=_DASHES, label="hollow: the paper's", **look))
    if entries:
        figure.legend(handles=entries, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9)


def _frame(ax: Any, panel: Panel | Bars) -> None:
    ax.set_title(panel.title, fontsize=10.5, loc="left")
    ax.set_xlabel(panel.x_label, fontsize=9.5)
    ax.tick_params(labelsize=8.5)
    ax.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _panel(ax: Any, panel: Panel, styles: dict[str, tuple[str, str]]) -> None:
    for line in panel.lines:
        _line(ax, line, *styles[line.family])
    ax.set_xscale("log", base=2)
    _ticks(ax, panel)
    if panel.y_log:
        ax.set_yscale("log")
    if panel.y_limits:
        ax.set_ylim(*panel.y_limits)


def _bars(ax: Any, bars: Bars, styles: dict[str, tuple[str, str]]) -> None:
    colors = [styles[family][0] for family in bars.values]
    ax.barh(range(len(bars.values)), list(bars.values.values()), color=colors, height=0.7)
    ax.set_yticks([])  # the legend names the colours
    ax.invert_yaxis()  # the first on top


def _line(ax: Any, line: Line, color: str, marker: str) -> None:
    path, dashes = line.path, _DASHES if line.published else "-"
    face = "white" if line.published else color
    ax.plot(
        [x for x, _ in path], [y for _, y in path], color=color, linestyle=dashes, marker=marker,
        markersize=5.5, linewidth=1.1 if line.published else 1.8, markerfacecolor=face, zorder=3,
    )  # fmt: skip
    rest = sorted(set(line.points) - set(path))
    ax.plot(
        [x for x, _ in rest], [y for _, y in rest], color=color, linestyle="none", marker=marker,
        markersize=5.5, markerfacecolor=face, zorder=3,
    )  # fmt: skip


def _ticks(ax: Any, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if panel.ticks:
        ax.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
        ax.xaxis.set_minor_locator(NullLocator())
    form = _size if panel.is_bytes else "{:g}".format
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))


def _size(count: float) -> str:
    for unit, size in (("MB", 2**20), ("KB", 2**10)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count:g} B"
