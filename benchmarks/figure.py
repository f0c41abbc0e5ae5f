"""The `ops` report as a figure: time against length on two logarithmic axes, one panel per pass."""

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.analysis import series

SUFFIXES = (".png", ".svg", ".pdf")


class Style(NamedTuple):
    """How one contestant is drawn. Colours: Okabe and Ito's, safe for colour-blind readers."""

    label: str
    color: str
    marker: str
    line: str
    width: float


STYLES = {
    "taylor_xla": Style("Taylor, chunked (based_jax)", "#0072B2", "o", "-", 2.8),
    "taylor_reference": Style("Taylor, quadratic (based_jax)", "#56B4E9", "s", "-", 1.6),
    "torch_taylor": Style("Taylor, quadratic (torch)", "#009E73", "D", "-", 1.6),
    "dot_product_attention": Style("softmax (jax.nn.dot_product_attention)", "#D55E00", "^", "--", 1.6),
    "softmax_xla": Style("softmax, by query blocks (based_jax)", "#E69F00", "v", "--", 1.6),
    "torch_sdpa": Style("softmax (torch SDPA)", "#CC79A7", "P", "--", 1.6),
}
"""Taylor attention in cool colours and full lines, softmax attention in warm ones and dashes."""

TITLES = {"forward": "forward", "forward_backward": "forward + backward"}


def missing() -> str | None:
    """Why there can be no figure here; None if there can."""
    if importlib.util.find_spec("matplotlib"):
        return None
    return "needs matplotlib (pip install 'based-jax[plot]')"


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report's timings into `path`; works on a report read back from JSON, too."""
    from matplotlib.figure import Figure  # without pyplot: no windows, no global state

    settings, machine = report["settings"], report["machine"]
    figure = Figure(figsize=(10.4, 5.2), dpi=160, layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, direction in zip(panels, TITLES, strict=True):
        _panel(axes, report, direction)
    panels[0].set_ylabel("time per call")
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(
        "Causal attention on a CPU: time against length\n", fontsize=13, fontweight="bold", x=0.01, ha="left"
    )
    facts = (
        f"{machine['cpu']}, {machine['cores']} cores, {settings['dtype']}, batch {settings['batch']}, "
        f"{settings['heads']} heads of {settings['value_size']} channels"
    )
    if any(row["status"] == "skipped" for row in report["rows"]):
        facts += (
            f"; a line ends where a call needs more than {settings['memory_limit_gib']:.2g} GiB "
            f"or {settings['seconds_budget']:g} s"
        )
    figure.text(0.01, 0.93, facts, fontsize=9, color="#555555", va="center")
    figure.savefig(path)


def _panel(axes: Any, report: dict[str, Any], direction: str) -> None:
    from matplotlib.patheffects import withStroke

    log_axes(axes, report["settings"]["lengths"])
    for contestant in report["contestants"]:
        style = STYLES[contestant["name"]]
        times = series(report["rows"], contestant["name"], direction)
        if times:
            axes.plot(
                list(times), list(times.values()), label=style.label, color=style.color, marker=style.marker,
                linestyle=style.line, linewidth=style.width, markersize=5.5, zorder=2 + style.width,
            )  # fmt: skip
    for entry in report["summary"]["growth"]:
        exponent = entry["time_exponent"]
        if (entry["contestant"], entry["pass"]) != ("taylor_xla", direction) or exponent is None:
            continue
        times = series(report["rows"], "taylor_xla", direction)
        axes.annotate(
            f"grows as $N^{{{exponent:.2f}}}$", (max(times), times[max(times)]), xytext=(0, -34),
            textcoords="offset points", ha="right", va="top", color=STYLES["taylor_xla"].color, fontsize=9.5,
            path_effects=[withStroke(linewidth=3, foreground="white")], zorder=9,
        )  # fmt: skip
    axes.set_title(TITLES[direction], fontsize=11, loc="left")


def log_axes(axes: Any, lengths: list[int]) -> None:
    """Time against length on logarithmic axes, ticks at the measured lengths."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("length N (tokens)")
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1024:g}k" if n >= 1024 else f"{n:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda s, _: _duration(s)))
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * 0.999:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e6:g} µs"
