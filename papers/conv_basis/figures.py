"""Draw the study's pictures: matrices, masks, and errors against the number of segments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from based_jax import ops, plot
from based_jax.experiments.panels import Line, Panel
from based_jax.experiments.results import Rows
from based_jax.typing import Float
from papers.conv_basis.approximations import UNIFORM, averaged

SIZE = 16
"""Number of rows of the illustrated matrices"""


def draw_sum(path: Path) -> None:
    """Draw three sub-convolution matrices and their sum with a 3-conv basis (the paper's figure 2)."""
    lag = np.arange(SIZE)
    kernels = np.stack([1.0 - 0.05 * lag, 1.2 * 0.8**lag, 0.8 + 0.3 * np.cos(lag)])
    sizes = np.array([SIZE, 11, 5])
    made = {
        f"conv(b{r + 1}, {size})": ops.conv_assemble(kernels[r : r + 1], sizes[r : r + 1])
        for r, size in enumerate(sizes)
    }
    made["their sum"] = ops.conv_assemble(kernels, sizes)
    most = max(matrix.max() for matrix in made.values())
    look = {"cmap": "viridis", "vmin": 0, "vmax": most}
    shown = {title: np.where(matrix == 0, np.nan, matrix) for title, matrix in made.items()}
    facts = (
        "conv(b, m): a causal convolution by b of the last m rows and columns. The sum has a 3-conv basis."
    )
    _matrices("A sum of three sub-convolution matrices", facts, _rows(shown, 2), path, "entry", **look)


def draw_masks(path: Path) -> None:
    """Draw masks for which `ops.masked_low_rank` is fast (the paper's figure 3); green is visible."""
    from matplotlib.colors import ListedColormap

    @jax.jit
    def dense(masks: Mapping[str, ops.StructuredMask]) -> dict[str, Any]:
        return {title: mask.dense(SIZE) for title, mask in masks.items()}

    gallery = ops.mask_gallery()
    matrices = dense(gallery)
    shown = {title: np.asarray(matrices[title], float) for title in gallery}  # in the gallery's order
    colors = ListedColormap(["#F4E04D", "#2E8B57"])
    look = {"cmap": colors, "vmin": 0, "vmax": 1}
    facts = "Green: the query may read the key; yellow: it may not."
    _matrices("Masks that low-rank attention is fast for", facts, _rows(shown, 3), path, "", **look)


def draw_heads(scores: Mapping[str, Float[np.ndarray, "N N"]], path: Path) -> None:
    """Draw heat maps of q k^T (as in the paper's figure 1b), over the means of their lower diagonals."""
    means = {}
    for title, matrix in scores.items():
        near = averaged(np.tril(matrix), np.zeros(1, int))
        means[f"{title}, means"] = np.where(np.tri(len(near)), near, np.nan)
    facts = (
        "Above: scores of one held-out text before the softmax. Below: the mean of each diagonal of their "
        "lower triangles, the Toeplitz part that one convolution can stand for."
    )
    _matrices("Attention scores of a trained model's heads", facts, [scores, means], path, "score q k^T")


def draw_curves(rows: Rows, title: str, facts: str, path: Path) -> None:
    """Draw relative errors of outputs against the number of segments, one panel for each input."""
    panels = []
    for name in dict.fromkeys(row["input"] for row in rows):
        lines = {row["line"]: row["points"] for row in rows if row["input"] == name}
        counts = [point[0] for points in lines.values() for point in points if point[0]]
        points = {line: [(x, y) for x, y, _ in found] for line, found in lines.items()}
        uniform = lines[UNIFORM][0][1]  # independent of the number of segments
        points[UNIFORM] = [(min(counts), uniform), (max(counts), uniform)]
        drawn = [Line(line, found) for line, found in points.items()]
        look: dict[str, Any] = {"y_label": "relative error of the outputs", "y_limits": (0, 1.25)}
        panels.append(Panel(name, "number of segments k", drawn, **look))
    plot.draw(title, facts, panels, path, columns=2)


def draw_replaced(lines: Mapping[str, Sequence[Sequence[float]]], facts: str, path: Path) -> None:
    """Draw loss and errors of outputs against k; a kind of attention without a k is a horizontal line."""
    counts = [point[0] for points in lines.values() for point in points if point[0]]
    panels = []
    for index, label in ((1, "bits per byte of held-out text"), (2, "relative error of the outputs")):
        drawn = []
        for line, points in lines.items():
            found = [(point[0], point[index]) for point in points]
            if len(points) == 1:
                found = [(k, found[0][1]) for k in (min(counts), max(counts))]
            drawn.append(Line(line, found))
        look: dict[str, Any] = {"y_label": label, "y_limits": None}
        panels.append(Panel(label, "k: segments, or keys", drawn, **look))
    plot.draw("A trained model with k columns of scores", facts, panels, path, columns=2)


def _rows(made: Mapping[str, np.ndarray], columns: int) -> list[dict[str, np.ndarray]]:
    """Split matrices into rows of at most `columns`."""
    items = list(made.items())
    return [dict(items[at : at + columns]) for at in range(0, len(items), columns)]


def _matrices(
    title: str, facts: str, made: Sequence[Mapping[str, np.ndarray]], path: Path, bar: str, **look: Any
) -> None:
    """Draw rows of matrices by title; by default red is positive and blue negative."""
    columns = max(len(row) for row in made)
    height = (2.8 if bar else 3.1) * len(made) + 1.1
    figure = plot.empty(2.9 * columns, height)
    grid = figure.subplots(len(made), columns, squeeze=False)
    for row, matrices in zip(grid, made, strict=True):
        for ax in row[len(matrices) :]:
            ax.set_axis_off()
        for ax, (name, matrix) in zip(row, matrices.items(), strict=False):
            most = float(np.nanmax(np.abs(matrix)))
            how = look or {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
            plot.matrix(ax, matrix, name, ("key position", "query position"), bar, **how)
    plot.heading(figure, title, facts)
    plot.save(figure, path)
