"""Draw the `static` report: a bar per program, stacked from its parts' least times."""

from pathlib import Path
from typing import Any

from based_jax import plot
from benchmarks.static.parts import OTHER, SOFTMAX
from benchmarks.static.tables import name_of

KINDS = {
    "MLPs": "#0072B2",
    "products of mixers with weights": "#56B4E9",
    "softmax": "#E69F00",
    "mixers otherwise": "#D55E00",
    "norms": "#009E73",
    "loss, or output embedding": "#CC79A7",
    "optimizer": "#6A3D9A",
    "the rest": "#BBBBBB",
}
"""Kinds of parts in a bar, from the left, and their colours."""

_OTHERS = {
    "MLP": "MLPs",
    "norms": "norms",
    "cross-entropy": "loss, or output embedding",
    "output embedding": "loss, or output embedding",
    "optimizer": "optimizer",
    "embedding": "the rest",
    OTHER: "the rest",
}


def kind_of(part: str) -> str:
    """Return the kind of a part; all mixers share one."""
    if SOFTMAX in part:
        return "softmax"
    if part.endswith("products with weights"):
        return "products of mixers with weights"
    return _OTHERS.get(part, "mixers otherwise")


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report into `path`; also works on a report read from JSON."""
    bars = stacks(report)
    figure = plot.empty(9.6, 2.2 + 0.5 * len(bars))
    axes = figure.subplots()
    for at, bar in enumerate(reversed(bars.values())):
        total, left = sum(bar.values()), 0.0
        for kind, color in KINDS.items():
            share = bar.get(kind, 0.0) / total
            axes.barh(at, share, left=left, color=color, label=None if at else kind)
            left += share
        axes.text(1.01, at, plot.duration(float(f"{total:.3g}")), va="center", fontsize=plot.SMALL)
    axes.set_yticks(range(len(bars)), list(reversed(bars)))
    axes.set_xlim(0, 1)
    plot.frame(axes, "", "share of the least time that the datasheet allows", "program")
    axes.grid(False, axis="y")
    plot.legend(figure, ncols=2)
    gpu = report["settings"]["gpu"]
    plot.heading(
        figure,
        f"Where models spend their time, by part: {gpu}",
        "Compiled, not run. Bars are scaled to one length.",
    )
    plot.save(figure, path)


def stacks(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return program -> kind -> seconds, with cuDNN by its formula if there is one."""
    found: dict[str, dict[str, float]] = {}
    for name in report["summary"]:
        bar = found.setdefault(name.replace(", ", "\n"), {})
        rows = [row for row in report["rows"] if name_of(row) == name]
        for row in [row for row in rows if row["cudnn"]] or rows:
            kind = kind_of(row["part"])
            bar[kind] = bar.get(kind, 0.0) + row["floor_seconds"]
    return found
