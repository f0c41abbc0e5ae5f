"""Draw the study's figure: learned and constructed weights and transforms, and errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from based_jax import plot
from based_jax.experiments.results import Rows
from papers.hyper_self_attention.interactions.colliding_agents import LENGTHS, Run, Setting
from papers.hyper_self_attention.interactions.constructions import Weights
from papers.hyper_self_attention.interactions.transform import transform

_COLORS = ("#222222", "#D55E00", "#0072B2")
_MARKERS = ("o", "s", "x")


def draw(setting: Setting, runs: Sequence[Run], weights: Sequence[Weights], rows: Rows, path: Path) -> None:
    """Draw a row of four matrices for each run and the weights that it learned, and two pairs of axes below.

    The rows are those of results.jsonl, one for each run.
    """
    heights = 2.2 * len(runs), 3.2
    figure = plot.empty(10.6, sum(heights) + 0.9)
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=heights))
    axes = np.asarray(above.subplots(len(runs), 4, squeeze=False))
    for number, (run, learned) in enumerate(zip(runs, weights, strict=True)):
        _matrices(axes[number], run, setting, learned)
    errors, training = np.asarray(below.subplots(1, 2))
    for run, row, color, marker in zip(runs, rows, _COLORS, _MARKERS, strict=False):
        look = {"color": color, "label": run.title}
        values = [row["test_mse"][str(length)] for length in LENGTHS]
        errors.plot(LENGTHS, values, marker=marker, linestyle="-", **look)
        history = row["history"]
        training.plot([h["time"] for h in history], [h["loss"] for h in history], marker=marker, **look)
        bounds = [h["bound"] for h in history]
        training.plot([h["time"] for h in history], bounds, linestyle=":", color=color)
    errors.axvline(setting.length, color="#AAAAAA", linewidth=0.8)
    look = {"transform": errors.get_xaxis_transform(), "fontsize": plot.SMALL, "va": "top"}
    errors.text(setting.length, 0.98, " trained length", **look)
    title, label = "test error by length (one-hot and sinusoidal coincide)", "mean squared error"
    plot.frame(errors, title, "length L (agents)", label)
    title = "training error; dotted: the bound of theorem 4.4"
    plot.frame(training, title, "time (learning rate x steps)", label)
    for ax in (errors, training):
        ax.set_yscale("log")
    handles, labels = errors.get_legend_handles_labels()
    plot.legend(below, handles, labels, ncols=len(runs))
    facts = (
        f"{setting.sequences:,} sequences of L = {setting.length} agents on a circle of N = {setting.size} "
        f"cells; those within the radius R = {setting.radius} act on each other. Above, a row per run: the "
        "weights C and the transform T between cells, learned and devised by hand; colours of C in "
        "logarithms down to a thousandth of the largest."
    )
    plot.heading(figure, "Colliding agents: what linear self-attention learns", facts)
    plot.save(figure, path)


def _matrices(axes: Sequence[Any], run: Run, setting: Setting, learned: Weights) -> None:
    from matplotlib.colors import SymLogNorm

    table = run.table(setting.size)
    devised = run.devised(setting.radius, setting.size)
    shown = setting.size if run.name == "one_hot" else max(12, setting.size // 5)
    part = "" if shown == setting.size else f", first {shown} rows"
    kind = "cell" if run.name == "one_hot" else "channel"
    weights, cells = (f"key {kind}", f"query {kind}"), ("cell that acts", "cell acted on")
    made = {
        f"learned C{part}": (learned.c[:shown, :shown], weights),
        f"devised C{part}": (devised.c[:shown, :shown], weights),
        "learned T": (transform(table, *learned)[..., 0], cells),
        "devised T": (transform(table, *devised)[..., 0], cells),
    }
    for ax, (name, (matrix, names)) in zip(axes, made.items(), strict=True):
        most = float(np.abs(matrix).max())
        look: dict[str, Any] = {"vmin": -most, "vmax": most}
        ticks, bar = (-most, 0, most), "entry"
        if " C" in name:  # off-diagonal entries are small
            look = {"norm": SymLogNorm(most / 1000, vmin=-most, vmax=most)}
            ticks, bar = (-most, -most / 30, 0, most / 30, most), "entry (log scale)"
        plot.matrix(ax, matrix, name, names, bar, ticks, cmap="RdBu_r", **look)
    axes[0].set_ylabel(f"{run.title}\n\n{weights[1]}", fontsize=plot.LABEL)
