"""Draw the figures of docs/theory.md: the induction head, the cost of BaseConv, the capacity of a state."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from based_jax import plot
from based_jax.data.tasks import IGNORE, MQAR
from based_jax.theory.bounds.capacity_curves import curves, published_curves
from based_jax.theory.mqar.base_conv_growth import growth
from based_jax.theory.mqar.induction_head import maps

PAIRS = 4
TOKENS = [2**k for k in range(2, 21, 2)]
TICKS = [2**k for k in range(2, 19, 4)]
AXES = ("position that is read (its token; blank: filler)", "position that reads (its token)")


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


def base_conv(path: Path) -> None:
    """Draw layers, and numbers in a layer, for solving MQAR by data-independent convolutions."""
    rows = [growth(tokens) for tokens in TOKENS]
    layers = {
        "two look-ups (F.7)": [row.by_position for row in rows],
        "one look-up": [row.by_key for row in rows],
        "binary tokens": [row.binary for row in rows],
        "least for these (F.5)": [row.needed for row in rows],
    }
    numbers = {
        "two look-ups (F.7)": [row.tokens * row.width for row in rows],
        "one look-up": [row.tokens * row.width_by_key for row in rows],
        "attention's scores": [row.tokens**2 for row in rows],
    }
    panel = partial(plot.Panel, x_label="tokens N = width d = vocabulary c", ticks=TICKS)
    of_layers = {"lines": _lines(layers), "y_label": "layers", "y_limits": (0, 16)}
    of_numbers = {"lines": _lines(numbers), "y_label": "numbers in a layer", "y_limits": None, "y_log": True}
    alike = "size of a layer (both look-ups nearly alike)"
    panels = [panel("layers", **of_layers), panel(alike, **of_numbers)]
    facts = (
        "Constructed weights, not trained ones; tokens one-hot, or in binary, where theorem F.5 says how "
        "many layers it takes at least. Attention takes two layers."
    )
    plot.draw("What exact recall (MQAR) costs with data-independent convolutions", facts, panels, path)


def _lines(values: dict[str, list[int]]) -> list[plot.Line]:
    return [plot.Line(name, list(zip(TOKENS, ys, strict=True))) for name, ys in values.items()]


def capacity(path: Path, study: Path | None) -> None:
    """Draw recall against the size of the state: the bound of theorem F.3, and measurements."""
    panels = [_recall("the paper's models (Based, Figure 2)", published_curves())]
    if study is not None:
        panels.append(_recall("models trained here, small scale", curves(study)))
    facts = (
        "MQAR, mean over the tests. No state of so many bytes can recall more than the bound of theorem F.3."
    )
    title = "Recall against the size of the state: what is possible, and what is reached"
    plot.draw(title, facts, panels, path)


def _recall(title: str, lines: Sequence[plot.Line]) -> plot.Panel:
    return plot.Panel(title, "size of the state (bytes)", lines, "recall (accuracy)", x_tick=plot.byte_size)


def draw(directory: Path, study: Path | None = None) -> list[Path]:
    """Draw all figures as PNGs and return their paths.

    The models of `study`, a directory of `experiments.mqar_tradeoff`, are drawn next to the paper's.
    """
    paths = [directory / f"theory_{name}.png" for name in ("induction_head", "base_conv", "capacity")]
    induction_head(paths[0])
    base_conv(paths[1])
    capacity(paths[2], study)
    return paths
