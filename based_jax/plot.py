"""The style of every figure: fonts, colours, tick labels, headings, axes, legends and files.

The text is large enough to be read at half the width of a page. Our points are filled, with solid lines; the
papers' are hollow, with dashed lines.
"""

import importlib.util
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

_LOOKS = {
    "Attention": ("#222222", "o"),
    "Based": ("#D55E00", "s"),
    "Sliding window": ("#0072B2", "D"),
    "Mamba": ("#009E73", "v"),
    "Mamba-2": ("#56B4E9", "^"),
    "GLA": ("#E69F00", "P"),
    "DeltaNet": ("#CC79A7", "*"),
    "Gated DeltaNet": ("#882255", "X"),
    "RWKV-7": ("#6A3D9A", "p"),
    "H3": ("#999933", "<"),
    "Hyena": ("#8C564B", ">"),
    "RWKV-4": ("#44AA99", "h"),
    "RetNet": ("#1F3B73", "d"),
    "BaseConv": ("#E377C2", "8"),
    "BigBird": ("#7F7F7F", "H"),
    "ScatterBrain": ("#17BECF", "o"),
    "Nystromformer": ("#BCBD22", "D"),
}
"""Colour and marker of each family, the same in every figure."""

HEADING, TITLE, LABEL, SMALL = 15, 12, 11, 10
"""Points of a figure's heading, a panel's title, labels of axes and the legend, ticks and notes."""

GREY = "#555555"
"""Colour of notes, and of what belongs to no family."""

_DASHES = (0, (3, 2))

Tick = Callable[[float], str]  # the label of a value on an axis


def count(value: float) -> str:
    """Label a number of things in powers of 1024: 512, 1k, 1.5k, 16k, 1M; others in full: 3,000, 0.25."""
    for unit, size in (("M", 2**20), ("k", 2**10)):
        scaled = value / size
        if scaled >= 1 and scaled == round(scaled, 1):
            return f"{scaled:g}{unit}"
    return f"{value:,.10g}"


def byte_size(value: float) -> str:
    """Label a number of bytes: 512 B, 16 KB, 2 MB, in powers of 1024."""
    for unit, size in (("MB", 2**20), ("KB", 2**10)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


def duration(seconds: float) -> str:
    """Label a time with its unit: 250 ns, 10 µs, 100 ms, 1 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.999:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e9:g} ns"


@dataclass(frozen=True)
class Line:
    """The points of one family: a kind of mixer, a model, or a text."""

    family: str
    points: Sequence[tuple[float, float]]
    published: bool = False  # whether the points are from a paper
    frontier: bool = False  # join only the points that beat all with a smaller x, instead of all
    curve: bool = False  # whether the line is a formula, drawn without markers

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
    y_label: str = "recall (accuracy)"
    y_limits: tuple[float, float] | None = (-0.03, 1.04)  # None shows all points
    y_log: bool = False  # whether y is in logarithms too
    x_tick: Tick = count
    y_tick: Tick | None = None  # None leaves the labels to matplotlib
    ticks: Sequence[float] = ()  # x ticks, if powers of two would be too many or too few


@dataclass(frozen=True)
class Bars:
    """One value of each family, side by side."""

    title: str
    x_label: str
    values: Mapping[str, float]
    y_label: str  # label of a family; the legend names the families
    limits: tuple[float, float] | None = None  # of the axis of the values; None fits them


def missing() -> str | None:
    """Return why there can be no figure here; None if there can."""
    if importlib.util.find_spec("matplotlib"):
        return None
    return "no figure: it needs matplotlib (pip install 'based-jax[plot]')"


def draw(
    title: str, facts: str, panels: Sequence[Panel | Bars], path: Path, columns: int | None = None
) -> None:
    """Draw the panels that have points into `path`, `columns` side by side (default all)."""
    shown = [panel for panel in panels if _families(panel)]
    columns = min(columns or len(shown), len(shown)) or 1
    height = -(-len(shown) // columns) or 1
    figure = empty(0.6 + 4 * columns, 1.7 + 3.4 * height)
    x_axes, y_axes = ({_axis(panel, letter) for panel in shown} for letter in "xy")
    grid = figure.subplots(height, columns, squeeze=False, sharex=len(x_axes) == 1, sharey=len(y_axes) == 1)
    styles = _styles([family for panel in shown for family in _families(panel)])
    for panel, ax in zip(shown, grid.flat, strict=False):
        is_named = len(y_axes) > 1 or ax.get_subplotspec().is_first_col()
        name, x_label = _wrapped(panel.title, 38), _wrapped(panel.x_label, 46)
        frame(ax, name, x_label, panel.y_label if is_named else "")
        if isinstance(panel, Bars):
            colors = [styles[family][0] for family in panel.values]
            ax.barh(range(len(colors)), list(panel.values.values()), color=colors, height=0.7)
            if panel.limits is not None:
                ax.set_xlim(*panel.limits)
            ax.set_yticks([])  # the legend names the colours
            ax.invert_yaxis()  # the first at the top
        else:
            _panel(ax, panel, styles)
    for ax in list(grid.flat)[len(shown) :]:
        ax.set_axis_off()
    _legend(figure, shown, styles, ncols=max(2, round(1.8 * columns)))
    heading(figure, title, facts)
    save(figure, path)


def empty(width: float, height: float) -> Any:
    """Make a figure without panels, of a size in inches."""
    from matplotlib.figure import Figure  # without pyplot: no windows, no global state

    return Figure(figsize=(width, height), layout="constrained")


def color(family: str) -> str:
    """Return the colour of a family, the same in every figure."""
    return _LOOKS[family][0]


def heading(figure: Any, title: str, facts: str) -> None:
    """Put a title at the top left, and the facts below it in grey, both wrapped to the figure's width."""
    width, height = figure.get_size_inches()
    titles = textwrap.wrap(title, int(7.5 * width), break_on_hyphens=False)
    lines = textwrap.wrap(facts, int(13.3 * width), break_on_hyphens=False)
    space = "\n" * -(-(2 * len(lines) + 1) // 3)  # two lines of the title are as high as three of the facts
    figure.suptitle("\n".join(titles) + space, fontsize=HEADING, fontweight="bold", x=0.01, ha="left")
    below = (0.14 + 0.25 * len(titles)) / height
    figure.text(0.01, 1 - below, "\n".join(lines), fontsize=SMALL, color=GREY, va="top")


def legend(figure: Any, *entries: Any, **options: Any) -> None:
    """Draw the one legend of a figure below its panels; `entries` as of matplotlib's `legend`."""
    look = {"loc": "outside lower center", "frameon": False, "fontsize": LABEL}
    figure.legend(*entries, **(look | options))


def frame(ax: Any, title: str, x_label: str, y_label: str = "") -> None:
    """Name a panel and its axes, with a light grid and without the box."""
    ax.set_title(title, fontsize=TITLE, loc="left")
    ax.set_xlabel(x_label, fontsize=LABEL)
    ax.set_ylabel(y_label, fontsize=LABEL)
    ax.tick_params(labelsize=SMALL, labelbottom=True)
    ax.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def matrix(
    ax: Any,
    values: Any,
    title: str,
    axes: tuple[str, str],
    bar: str,
    bar_ticks: Sequence[float] | None = None,
    **look: Any,
) -> None:
    """Show a matrix (rows, columns) with the names of x and y, and a colour bar.

    Args:
        bar: label of the colour bar; without one no bar is drawn.
        bar_ticks: ticks of the colour bar; None leaves them to matplotlib.
        **look: passed to `imshow`.
    """
    from matplotlib.ticker import MaxNLocator

    image = ax.imshow(values, interpolation="nearest", **look)
    ax.set_title(title, fontsize=TITLE)
    ax.set_xlabel(axes[0], fontsize=LABEL)
    ax.set_ylabel(axes[1], fontsize=LABEL)
    ax.tick_params(labelsize=SMALL)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if bar:
        drawn = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
        if bar_ticks is not None:
            drawn.set_ticks(bar_ticks, labels=[f"{value:.2g}" for value in bar_ticks])
        drawn.set_label(bar, fontsize=LABEL)
        drawn.ax.tick_params(labelsize=SMALL)


def save(figure: Any, path: Path) -> None:
    """Write the figure; a PNG at 150 dots per inch in 256 colours, a third of the size."""
    if path.suffix.lower() != ".png":
        figure.savefig(path)
        return
    from PIL import Image  # matplotlib needs it, too

    rendered = io.BytesIO()
    figure.savefig(rendered, dpi=150)
    image = Image.open(rendered).convert("RGB")
    # One step of k-means keeps white areas white.
    small = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False)


def _axis(panel: Panel | Bars, letter: str) -> Any:
    """Return a key that is equal for panels that share an axis."""
    if isinstance(panel, Bars):
        return panel.title
    if letter == "x":
        return panel.x_label, panel.x_tick, tuple(panel.ticks)
    return panel.y_label, panel.y_log


def _families(panel: Panel | Bars) -> list[str]:
    """Return the families of a panel's points."""
    if isinstance(panel, Bars):
        return list(panel.values)
    return [line.family for line in panel.lines] if any(line.points for line in panel.lines) else []


def _styles(families: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker of each family; unknown families take unused ones."""
    taken = {_LOOKS[family] for family in families if family in _LOOKS}
    others = cycle([look for look in _LOOKS.values() if look not in taken] or list(_LOOKS.values()))
    return {family: _LOOKS.get(family) or next(others) for family in dict.fromkeys(families)}


def _legend(
    figure: Any, panels: Sequence[Panel | Bars], styles: dict[str, tuple[str, str]], ncols: int
) -> None:
    """Draw a legend with an entry per family and one for the papers' points, at most `ncols` in a row."""
    from matplotlib.lines import Line2D

    drawn = [line for panel in panels if isinstance(panel, Panel) for line in panel.lines]
    ours = {line.family for line in drawn if not line.published}
    theirs = {line.family for line in drawn} - ours
    curves = {line.family for line in drawn if line.curve}
    entries = [
        (family, color, "" if family in curves else marker, family in theirs)
        for family, (color, marker) in styles.items()
    ]
    if any(line.published for line in drawn):
        entries.append(("hollow: the paper's", "#777777", "o", True))
    handles = []
    for label, color, marker, hollow in entries:
        face, dashes = ("white", _DASHES) if hollow else (color, "-")
        look: Any = {"color": color, "marker": marker, "markerfacecolor": face}
        handles.append(Line2D([], [], label=label, linestyle=dashes, **look))
    if handles:
        widest = 0.6 + 0.088 * max(len(label) for label, *_ in entries)  # inches, with the line before it
        width, height = figure.get_size_inches()
        ncols = max(1, min(ncols, int(width / widest)))
        figure.set_size_inches(width, height + 0.22 * max(0, -(-len(handles) // ncols) - 4))
        columns = -(-len(handles) // -(-len(handles) // ncols))
        legend(figure, handles=handles, ncols=columns)


def _panel(ax: Any, panel: Panel, styles: dict[str, tuple[str, str]]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    for line in panel.lines:
        _line(ax, line, *styles[line.family])
    ax.set_xscale("log", base=2)
    if panel.y_log:
        ax.set_yscale("log")
    if panel.y_limits:
        ax.set_ylim(*panel.y_limits)
    if panel.ticks:
        ax.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
        ax.xaxis.set_minor_locator(NullLocator())
    for axis, tick in ((ax.xaxis, panel.x_tick), (ax.yaxis, panel.y_tick)):
        if tick:
            axis.set_major_formatter(FuncFormatter(lambda value, _, tick=tick: tick(value)))


def _line(ax: Any, line: Line, color: str, marker: str) -> None:
    dashes, width = (_DASHES, 1.1) if line.published else ("-", 1.8)
    face = "white" if line.published else color
    rest = sorted(set(line.points) - set(line.path))
    joined = {"linestyle": dashes, "linewidth": width, "marker": "" if line.curve else marker}
    for points, look in ((line.path, joined), (rest, {"linestyle": "none", "marker": marker})):
        x, y = [x for x, _ in points], [y for _, y in points]
        ax.plot(x, y, color=color, markersize=5.5, markerfacecolor=face, zorder=3, **look)
