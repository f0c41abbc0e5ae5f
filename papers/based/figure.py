"""Draw the figures of README.md: the cost of BaseConv, the capacity of a state."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from based_jax import plot
from papers.based.bounds.capacity_curves import curves, published_curves
from papers.based.mqar.base_conv_growth import growth

TOKENS = [2**k for k in range(2, 21, 2)]
TICKS = [2**k for k in range(2, 19, 4)]
TRAINED = Path(__file__).parents[2] / "results" / "mqar" / "tradeoff"


def draw(directory: Path) -> list[Path]:
    """Draw the figures as PNGs and return their paths."""
    paths = [directory / f"{name}.png" for name in ("base_conv", "capacity")]
    base_conv(paths[0])
    capacity(paths[1])
    return paths


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


def capacity(path: Path) -> None:
    """Draw recall against the size of the state: the bound of theorem F.3, and measurements."""
    panels = [
        _recall("the paper's models (Based, Figure 2)", published_curves()),
        _recall("models trained here, small scale", curves(TRAINED)),
    ]
    facts = (
        "MQAR, mean over the tests. No state of so many bytes can recall more than the bound of theorem F.3."
    )
    title = "Recall against the size of the state: what is possible, and what is reached"
    plot.draw(title, facts, panels, path)


def _recall(title: str, lines: Sequence[plot.Line]) -> plot.Panel:
    return plot.Panel(title, "size of the state (bytes)", lines, "recall (accuracy)", x_tick=plot.byte_size)
