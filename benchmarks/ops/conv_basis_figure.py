"""Draw the `conv_basis` report: attention in both passes, and Figure 1a of the paper, per token."""

import math
from pathlib import Path
from typing import Any

from based_jax import plot
from benchmarks.analysis import series
from benchmarks.ops.candidates import FORWARD
from benchmarks.ops.conv_basis_candidates import DENSE, EXACT, FFT
from benchmarks.ops.figure import TITLES, facts, log_axes

COLORS = ("#56B4E9", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#000000")
"""colours of the numbers of convolutions, ascending; Okabe and Ito's, safe for colour-blind readers"""
EXACT_COLOR = "#D55E00"


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report's timings into `path`; also works on a report read from JSON."""
    settings = report["settings"]
    figure = plot.empty(9.6, 9.2)
    panels = figure.subplots(2, 2)
    for axes, direction in zip(panels[0], TITLES, strict=True):
        _attention(axes, report, direction)
    plot.legend(
        figure, *panels[0][1].get_legend_handles_labels(), ncols=3
    )  # both directions have these lines
    _per_token(panels[1][0], report)
    _operations(panels[1][1], settings["lengths"])
    heads = f"{settings['heads']} head{'s' * (settings['heads'] > 1)} of {settings['head_dim']} channels"
    gradients = "Solid: the paper's gradient; dotted: the gradient of what is computed, through anchors."
    title = "Attention through k convolutions, beside exact attention"
    plot.heading(figure, title, f"{facts(report, heads)} {gradients}")
    plot.save(figure, path)


def product_operations(name: str, length: int) -> float:
    """Return the operations of one product: 2 per entry on or below the diagonal, or three real FFTs.

    A real transform of length L takes 2.5 L log2 L of them; L = 2 N, and N + 1 complex factors.
    """
    if name == DENSE:
        return length * (length + 1)
    size = 2 * length
    return 3 * 2.5 * size * math.log2(size) + 6 * (length + 1)


def _attention(axes: Any, report: dict[str, Any], direction: str) -> None:
    log_axes(axes, report["settings"]["lengths"], f"attention, {TITLES[direction]}")
    colors = dict(zip(report["settings"]["terms"], COLORS, strict=False))
    for candidate in report["candidates"]:
        name, terms = candidate["name"], candidate["terms"]
        if name != EXACT and terms is None:
            continue
        through_anchors = name.startswith("anchors")
        color = EXACT_COLOR if name == EXACT else colors.get(terms, "#777777")
        label = "exact" if name == EXACT else f"k = {terms}{', through anchors' * through_anchors}"
        times = series(report["rows"], name, direction)
        if times:
            axes.plot(
                list(times),
                list(times.values()),
                color=color,
                marker="^" if name == EXACT else "o",
                linestyle="--" if name == EXACT else ":" if through_anchors else "-",
                label=label,
            )


def _per_token(axes: Any, report: dict[str, Any]) -> None:
    title = "one convolution of a vector (the paper's Figure 1a)"
    log_axes(axes, report["settings"]["lengths"], title, "time per token")
    for name, label, color in ((DENSE, "dense", EXACT_COLOR), (FFT, "FFT", COLORS[1])):
        times = series(report["rows"], name, FORWARD)
        if times:
            axes.plot(list(times), [t / n for n, t in times.items()], color=color, marker="o", label=label)
    axes.yaxis.set_minor_formatter(lambda seconds, _: "")
    plot.legend(axes, loc="best")


def _operations(axes: Any, lengths: list[int]) -> None:
    log_axes(axes, lengths, "operations of that convolution, by formula", "operations per token")
    for name, label, color in ((DENSE, "dense", EXACT_COLOR), (FFT, "FFT", COLORS[1])):
        axes.plot(
            lengths, [product_operations(name, n) / n for n in lengths], color=color, marker="o", label=label
        )
    axes.yaxis.set_major_formatter(lambda operations, _: f"{operations:,g}")
    plot.legend(axes, loc="best")
