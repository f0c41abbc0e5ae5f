"""The study's pictures: matrices, masks, and errors against the number of segments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from based_jax import ops, plot
from based_jax.experiments.conv_basis.approximations import UNIFORM, averaged
from based_jax.experiments.panels import Line, Panel
from based_jax.typing import Float

Rows = Sequence[Mapping[str, Any]]
SIZE = 16
"""Rows of the matrices that illustrate"""


def draw_sum(path: Path) -> None:
    """Three sub-convolution matrices and their sum, a matrix with a 3-conv basis (the paper's figure 2)."""
    lag = np.arange(SIZE)
    kernels = np.stack([1.0 - 0.05 * lag, 1.2 * 0.8**lag, 0.8 + 0.3 * np.cos(lag)])
    sizes = np.array([SIZE, 11, 5])
    terms = [ops.conv_assemble(kernels[r : r + 1], sizes[r : r + 1]) for r in range(3)]
    titles = [f"conv(b{r + 1}, {size})" for r, size in enumerate(sizes)]
    made = dict(zip(titles, terms, strict=True)) | {"their sum": ops.conv_assemble(kernels, sizes)}
    most = max(matrix.max() for matrix in made.values())
    look = {"cmap": "viridis", "vmin": 0, "vmax": most}
    shown = {title: np.where(matrix == 0, np.nan, matrix) for title, matrix in made.items()}
    _matrices("A sum of three sub-convolution matrices", [shown], path, **look)


def draw_masks(path: Path) -> None:
    """Masks that `ops.masked_low_rank` is fast for (the paper's figure 3); green is seen."""
    from matplotlib.colors import ListedColormap

    @jax.jit
    def dense(masks: Mapping[str, ops.StructuredMask]) -> dict[str, Any]:
        return {title: mask.dense(SIZE) for title, mask in masks.items()}

    gallery = ops.mask_gallery()
    matrices = dense(gallery)
    shown = {title: np.asarray(matrices[title], float) for title in gallery}  # in the gallery's order
    colors = ListedColormap(["#F4E04D", "#2E8B57"])
    look = {"cmap": colors, "vmin": 0, "vmax": 1}
    _matrices("Masks with structure: row i sees the green columns", [shown], path, **look)


def draw_heads(scores: Mapping[str, Float[np.ndarray, "N N"]], path: Path) -> None:
    """Heat maps of q k^T (as the paper's figure 1b), over the diagonals' means of their lower triangles."""
    means = {}
    for title, matrix in scores.items():
        near = averaged(np.tril(matrix), np.zeros(1, int))
        means[f"{title}: means"] = np.where(np.tril(np.ones_like(near)), near, np.nan)
    _matrices("q k^T of a trained model's heads, and its part that is Toeplitz", [scores, means], path)


def draw_curves(rows: Rows, title: str, facts: str, path: Path) -> None:
    """Relative errors of outputs against the number of segments, one panel for each input."""
    panels = []
    for name in dict.fromkeys(row["input"] for row in rows):
        lines = {row["line"]: row["points"] for row in rows if row["input"] == name and "line" in row}
        counts = [point[0] for points in lines.values() for point in points if point[0]]
        drawn = []
        for line, points in lines.items():
            where = [(x, y) for x, y, _ in points]
            if line == UNIFORM:  # of no number of segments
                where = [(x, points[0][1]) for x in (min(counts), max(counts))]
            drawn.append(Line(line, where))
        look: dict[str, Any] = {"y_label": "relative error of outputs", "y_limits": (0, 1.25)}
        panels.append(Panel(name, "segments k", drawn, **look))
    plot.draw(title, facts, panels, path, columns=4)


def _matrices(title: str, made: Sequence[Mapping[str, np.ndarray]], path: Path, **look: Any) -> None:
    """Rows of matrices; without a look, red is positive and blue negative, up to the number in the title."""
    from matplotlib.figure import Figure  # without pyplot: no windows, no global state
    from matplotlib.ticker import MaxNLocator

    columns = max(len(row) for row in made)
    figure = Figure(figsize=(2.6 * columns, 2.9 * len(made) + 0.4), dpi=110, layout="constrained")
    axes = figure.subplots(len(made), columns, squeeze=False)
    for row, matrices in zip(axes, made, strict=True):
        for ax, (name, matrix) in zip(row, matrices.items(), strict=True):
            most = float(np.nanmax(np.abs(matrix)))
            how = look or {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
            ax.imshow(matrix, interpolation="nearest", **how)
            ax.set_title(name if look else f"{name}, \u00b1{most:.3g}", fontsize=9)
            ax.tick_params(labelsize=7)
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title, fontsize=11, fontweight="bold")
    figure.savefig(path)
