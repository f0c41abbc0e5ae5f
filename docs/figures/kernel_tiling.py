"""Draws kernel_tiling.png, the picture of docs/kernels.md: `python docs/figures/kernel_tiling.py`."""

from pathlib import Path
from typing import Any

from matplotlib.patches import FancyArrowPatch, Patch, Polygon, Rectangle

from based_jax import plot

TOKENS, STATE, WORK, INK = "#cfe3f7", "#f6d9a8", "#d8ecd0", "#333333"

BLOCKS, CHUNKS = 4, 4
WIDTH, GAP = 2.55, 0.25
"""Of a block, and between two."""


def left(block: int) -> float:
    return block * (WIDTH + GAP)


def box(
    axes: Any,
    x: float,
    y: float,
    width: float,
    height: float,
    color: str,
    text: str = "",
    size: float = plot.SMALL,
) -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=INK, linewidth=0.8))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=INK)


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], **options: Any) -> None:
    style = {
        "arrowstyle": "-|>",
        "mutation_scale": 9,
        "linewidth": 0.9,
        "color": INK,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.add_patch(FancyArrowPatch(start, end, **(style | options)))


def tokens(axes: Any, y: float) -> None:
    """The token axis: blocks of chunks."""
    for block in range(BLOCKS):
        for chunk in range(CHUNKS):
            box(axes, left(block) + chunk * WIDTH / CHUNKS, y, WIDTH / CHUNKS, 0.4, TOKENS)
        axes.text(
            left(block) + WIDTH / 2, y + 0.55, f"block {block}: L tokens", ha="center", fontsize=plot.SMALL
        )


def passes(axes: Any) -> None:
    """Forward: three kernels over the blocks of one row and head."""
    axes.set_title(
        "Forward, for one sequence and head: one program per block in passes 1 and 3",
        fontsize=plot.TITLE,
        loc="left",
    )
    end = left(BLOCKS - 1) + WIDTH
    tokens(axes, 5.2)
    for block in range(BLOCKS):
        middle = left(block) + WIDTH / 2
        if block < BLOCKS - 1:
            arrow(axes, (middle, 5.15), (middle, 4.65))
            box(axes, left(block), 4.05, WIDTH, 0.6, WORK, "1  key_sums")
            arrow(axes, (middle, 4.05), (middle, 3.55))
            box(axes, middle - 0.55, 3.05, 1.1, 0.5, STATE, f"$S_{block}$")
            arrow(axes, (middle, 3.05), (middle, 2.55))
        else:
            axes.text(
                middle, 4.35, "(no later block\nneeds its sum)", ha="center", va="center", fontsize=plot.SMALL
            )
    box(axes, 0, 2.05, end, 0.5, WORK, "2  scan: running sums over the blocks, in order")
    names = ["$S_{init}$", "$S_{init}+S_0$", "$S_{init}+S_0+S_1$", "$S_{init}+S_0+S_1+S_2$"]
    for block, name in enumerate(names):
        middle = left(block) + WIDTH / 2
        arrow(axes, (middle, 2.05), (middle, 1.6))
        box(axes, left(block) + 0.1, 1.1, WIDTH - 0.2, 0.5, STATE, name)
        arrow(axes, (middle, 1.1), (middle, 0.65))
        box(axes, left(block), 0.05, WIDTH, 0.6, WORK, "3  outputs")
        arrow(axes, (left(block) + 0.12, -0.12), (left(block) + WIDTH - 0.12, -0.12), color="#888888")
        axes.text(middle, -0.4, "chunk after chunk", ha="center", fontsize=plot.SMALL, color="#666666")
    axes.set_xlim(-0.3, end + 0.3)
    axes.set_ylim(-0.65, 6.1)


def program(axes: Any) -> None:
    """One step of `outputs`: 64 tokens, 160 rows of state, 64 value channels, all to one scale."""
    axes.set_title(
        "One step of outputs: 64 tokens, keys of K = 16, values of V = 64 channels (to scale)",
        fontsize=plot.TITLE,
        loc="left",
    )
    unit = 1 / 64
    rows = [
        (0, 64, "64 products\n$x_m x_n$"),
        (64, 64, "64 products\n$x_m x_n$"),
        (128, 32, "8 squares,\n$x$, 1, zeros"),
    ]
    y = 1.7

    def label(x: float, text: str, at: float = 1.12) -> None:
        axes.text(x, y + at, text, ha="center", fontsize=plot.SMALL)

    def sign(x: float, text: str) -> None:
        axes.text(x, y + 0.5, text, ha="center", va="center", fontsize=plot.HEADING)

    for first, count, _ in rows:
        box(axes, first * unit, y, count * unit, 1, TOKENS)
    label(1.25, r"$\phi(q)$: 64 x 160")
    axes.text(
        1.25, y - 0.2, "(q R + r) * (q T + t), tile by tile", ha="center", va="center", fontsize=plot.SMALL
    )
    sign(2.67, "x")
    for first, count, text in rows:
        box(axes, 2.85, y + 1 - (first + count) * unit, 1, count * unit, STATE)
        axes.text(
            3.35, y + 1 - (first + count / 2) * unit, text, ha="center", va="center", fontsize=plot.SMALL
        )
    label(3.35, "S: 160 x 64")
    sign(4.05, "+")
    axes.add_patch(Rectangle((4.25, y), 1, 1, facecolor="white", edgecolor=INK, linewidth=0.8))
    triangle = [(4.25, y), (5.25, y), (4.25, y + 1)]
    axes.add_patch(Polygon(triangle, facecolor=TOKENS, edgecolor=INK, linewidth=0.8))
    axes.text(4.57, y + 0.3, "$1+s+\\frac{s^2}{2}$", ha="center", va="center", fontsize=plot.SMALL)
    label(4.75, "p: 64 x 64")
    sign(5.4, "x")
    box(axes, 5.55, y, 1, 1, TOKENS, "v")
    label(6.05, "64 x 64")
    sign(6.75, "=")
    box(axes, 6.95, y, 1, 1, WORK, "y times\nnormaliser")
    label(7.45, "64 x 64")
    axes.text(
        6.1,
        0.72,
        "then, for the next 64 tokens:\n"
        r"$S \leftarrow S + \phi(k)^T v$   (160 x 64) x (64 x 64)"
        "\n"
        "S (of all tokens before these) stays in registers;\n$\\phi$ and p never leave the program",
        ha="center",
        va="center",
        fontsize=plot.SMALL,
    )
    axes.set_xlim(-0.1, 8.1)
    axes.set_ylim(0.1, 3.1)


def backward(axes: Any) -> None:
    """Directions of the walks."""
    axes.set_title("Backward: dq goes forward, dk and dv go from the end", fontsize=plot.TITLE, loc="left")
    rows = [
        (1.35, "dq", "key_sums, scan: sums over the keys before the block", 1),
        (0.45, "dk, dv", "query_sums, scan from the end: sums over the queries after the block", -1),
    ]
    end = left(BLOCKS - 1) + WIDTH
    for y, name, text, direction in rows:
        for block in range(BLOCKS):
            box(axes, left(block), y, WIDTH, 0.32, TOKENS)
            ends = [left(block) + 0.15, left(block) + WIDTH - 0.15]
            arrow(axes, (ends[::direction][0], y + 0.16), (ends[::direction][1], y + 0.16))
        for block in range(BLOCKS - 1):
            edge = left(block) + WIDTH
            box(axes, edge + GAP / 2 - 0.09, y - 0.02, 0.18, 0.36, STATE)
        axes.text(-0.15, y + 0.16, name, ha="right", va="center", fontsize=plot.LABEL)
        axes.text(end / 2, y - 0.2, text, ha="center", va="center", fontsize=plot.SMALL)
    axes.set_xlim(-0.9, end + 0.3)
    axes.set_ylim(0.05, 1.85)


def main() -> None:
    figure = plot.empty(9.4, 11.6)
    axes = figure.subplots(3, 1, height_ratios=[6.7, 4.4, 2.6])
    for draw, part in zip((passes, program, backward), axes, strict=True):
        draw(part)
        part.axis("off")
    axes[1].set_aspect("equal")
    colors = (
        (TOKENS, "tokens, their products"),
        (STATE, "states: sums over tokens"),
        (WORK, "kernels, outputs"),
    )
    keys = [Patch(facecolor=color, edgecolor=INK, label=label) for color, label in colors]
    plot.legend(figure, handles=keys, ncols=3)
    facts = "Blocks are computed side by side; only the small states pass from block to block."
    plot.heading(figure, "How the Taylor attention kernels split a sequence", facts)
    plot.save(figure, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
