"""Draw the `ops` report: time against length on two logarithmic axes, one panel per pass."""

from pathlib import Path
from typing import Any, NamedTuple

from based_jax import plot
from benchmarks.analysis import series


class Style(NamedTuple):
    """Style of one candidate's line. Colours: Okabe and Ito's, safe for colour-blind readers."""

    label: str
    color: str
    marker: str
    line: str
    width: float


STYLES = {
    "taylor_xla": Style("Taylor, chunked (based_jax)", "#D55E00", "s", "-", 2.8),
    "taylor_reference": Style("Taylor, quadratic (based_jax)", "#E69F00", "o", "-", 1.6),
    "torch_taylor": Style("Taylor, quadratic (torch)", "#CC79A7", "D", "-", 1.6),
    "dot_product_attention": Style("softmax (jax.nn.dot_product_attention)", "#222222", "^", "--", 1.6),
    "softmax_xla": Style("softmax, by query blocks (based_jax)", "#0072B2", "v", "--", 1.6),
    "softmax_tiled": Style("softmax, by tiles (based_jax)", "#56B4E9", "X", "--", 1.6),
    "softmax_prefill": Style("softmax, by tiles, into a cache (based_jax)", "#999999", "*", "--", 1.6),
    "torch_sdpa": Style("softmax (torch SDPA)", "#009E73", "P", "--", 1.6),
}
"""Taylor attention in warm colours and full lines, softmax attention in cool ones and dashes."""

TITLES = {"forward": "forward", "forward_backward": "forward + backward"}


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report's timings into `path`; also works on a report read from JSON."""
    settings = report["settings"]
    figure = plot.empty(9, 5.9)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, direction in zip(panels, TITLES, strict=True):
        _panel(axes, report, direction)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        plot.legend(figure, handles, labels, ncols=2)
    work = f"{settings['heads']} heads of {settings['value_size']} channels"
    plot.heading(figure, "Causal attention on a CPU: time against length", facts(report, work))
    plot.save(figure, path)


def facts(report: dict[str, Any], work: str) -> str:
    """Describe what was measured and where, and why lines end."""
    settings, machine = report["settings"], report["machine"]
    batch = settings.get("batch", 1)
    said = f"{machine['cpu']}, {machine['cores']} cores, {settings['dtype']}, batch {batch}, {work}."
    if any(row["status"] == "skipped" for row in report["rows"]):
        said += (
            f" A line ends where a call needs more than {settings['memory_limit_gib']:.2g} GiB "
            f"or {settings['seconds_budget']:g} s."
        )
    return said


def _panel(axes: Any, report: dict[str, Any], direction: str) -> None:
    from matplotlib.patheffects import withStroke

    log_axes(axes, report["settings"]["lengths"], TITLES[direction])
    for candidate in report["candidates"]:
        style = STYLES[candidate["name"]]
        times = series(report["rows"], candidate["name"], direction)
        if times:
            axes.plot(
                list(times),
                list(times.values()),
                label=style.label,
                color=style.color,
                marker=style.marker,
                linestyle=style.line,
                linewidth=style.width,
                markersize=5.5,
                zorder=2 + style.width,
            )
    for entry in report["summary"]["growth"]:
        exponent = entry["time_exponent"]
        if (entry["candidate"], entry["pass"]) != ("taylor_xla", direction) or exponent is None:
            continue
        times = series(report["rows"], "taylor_xla", direction)
        axes.annotate(
            f"grows as $N^{{{exponent:.2f}}}$",
            (max(times), times[max(times)]),
            xytext=(0, -54),
            textcoords="offset points",
            ha="right",
            va="top",
            color=STYLES["taylor_xla"].color,
            fontsize=plot.LABEL,
            path_effects=[withStroke(linewidth=3, foreground="white")],
            zorder=9,
        )


def log_axes(
    axes: Any,
    lengths: list[int],
    title: str = "",
    y_label: str = "time per call",
    x_label: str = "length N (tokens)",
) -> None:
    """Set up axes of time against length, both logarithmic, with ticks at the measured lengths."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    plot.frame(axes, title, x_label, y_label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: plot.count(n)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda s, _: plot.duration(s)))
