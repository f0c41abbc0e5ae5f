"""Draw the figure of README.md: the induction head."""

from functools import partial
from pathlib import Path

import jax
import numpy as np

from based_jax import plot
from based_jax.data.tasks import IGNORE, MQAR
from papers.zoology.mqar.induction_head import maps

PAIRS = 4
AXES = ("position that is read (its token; blank: filler)", "position that reads (its token)")


def draw(directory: Path) -> list[Path]:
    """Draw the figure as a PNG and return its path."""
    path = directory / "induction_head.png"
    induction_head(path)
    return [path]


def induction_head(path: Path) -> None:
    """Draw both maps of the induction head on one row of MQAR; the answers are framed."""
    from matplotlib.patches import Rectangle

    task = MQAR(vocab_size=26, num_examples=1, length=6 * PAIRS, num_pairs=PAIRS, random_fill=False)
    inputs, labels = (np.asarray(array)[0] for array in task.draw(jax.random.key(1)))
    names = ["" if token == 0 else chr(ord("a") + token - 1) for token in inputs]
    figure = plot.empty(10.4, 5.6)
    titles = ("1. convolution: read the token before", "2. attention: read what followed the same token")
    panels = figure.subplots(1, 2)
    look = {"cmap": "Blues", "vmin": 0, "vmax": 1}
    for ax, map_, title in zip(panels, maps(inputs), titles, strict=True):
        plot.matrix(ax, map_, title, AXES, "weight", **look)
        ax.set_xticks(range(len(names)), names)
        ax.set_yticks(range(len(names)), names)
        ax.tick_params(length=0)
    frame = partial(Rectangle, width=1, height=1, fill=False, edgecolor="#D55E00", linewidth=1.6)
    for row in np.flatnonzero(labels != IGNORE):
        column = int(np.flatnonzero(inputs == labels[row])[0])
        panels[1].add_patch(frame((column - 0.5, row - 0.5)))
    facts = (
        f"The two layers on one row of MQAR, a letter per token: {PAIRS} pairs of key and value, then each "
        "key again among blanks. Framed: the value that answers it."
    )
    plot.heading(figure, "Recall by an induction head", facts)
    plot.save(figure, path)
