"""The study's figure: weights and transforms, learned and devised, and errors by length and in training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from based_jax.experiments.interactions.colliding_agents import LENGTHS, Run, Setting
from based_jax.experiments.interactions.constructions import Weights
from based_jax.experiments.interactions.transform import transform

_COLORS = ("#222222", "#D55E00", "#0072B2")
_MARKERS = ("o", "s", "x")


def draw(
    setting: Setting,
    runs: Sequence[Run],
    weights: Sequence[Weights],
    rows: Sequence[Mapping[str, Any]],
    path: Path,
) -> None:
    """Draw a row of four matrices for each run, and two pairs of axes below them, as a PNG.

    Args:
        setting: of the data.
        runs: to draw.
        weights: that each run learned.
        rows: of results.jsonl, one for each run.
        path: of the PNG.
    """
    from matplotlib.figure import Figure  # without pyplot: no windows, no global state

    figure = Figure(figsize=(11, 2.9 * len(runs) + 3.4), dpi=110, layout="constrained")
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=(2.9 * len(runs), 3.2)))
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
    _frame(errors, "test MSE by length; the line is the length of training", "length L")
    _frame(training, "training MSE; dotted: the bound of theorem 4.4", "time (learning rate x steps)")
    errors.legend(frameon=False, fontsize=8)
    about = "Blue is negative, red positive, up to the number; C in logarithms down to a thousandth of it"
    above.supxlabel(about, fontsize=8)
    figure.suptitle(
        f"Colliding agents: N = {setting.size}, R = {setting.radius}, L = {setting.length}, "
        f"{setting.sequences:,} sequences",
        fontsize=12, fontweight="bold",
    )  # fmt: skip
    figure.savefig(path)


def _matrices(axes: Sequence[Any], run: Run, setting: Setting, learned: Weights) -> None:
    from matplotlib.colors import SymLogNorm

    table = run.table(setting.size)
    devised = run.devised(setting.radius, setting.size)
    shown = setting.size if run.name == "one_hot" else max(12, setting.size // 5)
    part = "" if shown == setting.size else f", first {shown} rows"
    made = {
        f"learned C{part}": learned.c[:shown, :shown],
        f"devised C{part}": devised.c[:shown, :shown],
        "learned T": transform(table, *learned)[..., 0],
        "devised T": transform(table, *devised)[..., 0],
    }
    for ax, (name, matrix) in zip(axes, made.items(), strict=True):
        most = float(np.abs(matrix).max())
        how: dict[str, Any] = {"vmin": -most, "vmax": most}
        if " C" in name:  # off the diagonal it is small
            how = {"norm": SymLogNorm(most / 1000, vmin=-most, vmax=most)}
        ax.imshow(matrix, cmap="RdBu_r", interpolation="nearest", **how)
        ax.set_title(f"{name}: \u00b1{most:.3g}", fontsize=9)
        ax.tick_params(labelsize=7)
    axes[0].set_ylabel(run.title, fontsize=9, fontweight="bold")


def _frame(ax: Any, title: str, label: str) -> None:
    ax.set_yscale("log")
    ax.set_title(title, fontsize=9, loc="left")
    ax.set_xlabel(label, fontsize=9)
    ax.tick_params(labelsize=8)
    ax.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    ax.spines[["top", "right"]].set_visible(False)
