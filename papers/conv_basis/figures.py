"""Draw the study's pictures: heads, and errors against the number of segments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from based_jax import plot
from based_jax.experiments.results import Rows
from based_jax.plot import Line, Panel
from based_jax.typing import Float
from papers.conv_basis.approximations import UNIFORM, averaged


def draw_heads(scores: Mapping[str, Float[np.ndarray, "N N"]], path: Path) -> None:
    """Draw heat maps of q k^T (as in the paper's figure 1b), over the means of their lower diagonals."""
    means = {}
    for title, matrix in scores.items():
        near = averaged(np.tril(matrix), np.zeros(1, int))
        means[f"{title}, means"] = np.where(np.tri(len(near)), near, np.nan)
    figure = plot.empty(2.9 * len(scores), 6.7)
    grid = figure.subplots(2, len(scores), squeeze=False)
    for row, matrices in zip(grid, (scores, means), strict=True):
        for ax, (name, matrix) in zip(row, matrices.items(), strict=True):
            most = float(np.nanmax(np.abs(matrix)))
            look = {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
            plot.matrix(ax, matrix, name, ("key position", "query position"), "score q k^T", **look)
    facts = (
        "Above: scores of one held-out text before the softmax. Below: the mean of each diagonal of their "
        "lower triangles, the Toeplitz part that one convolution can stand for."
    )
    plot.heading(figure, "Attention scores of a trained model's heads", facts)
    plot.save(figure, path)


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
