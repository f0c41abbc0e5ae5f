"""The `static` report as a figure: a bar per program, stacked of its parts' floors."""

from pathlib import Path
from typing import Any

from based_jax import plot

SMALL = 0.02
"""Share of a program below which a part is drawn with the others of its kind."""

REST = "the rest"

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A3D9A", "#8C564B", "#222222")


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report into `path`; works on a report read back from JSON, too."""
    from matplotlib.figure import Figure  # without pyplot: no windows, no global state

    bars = stacks(report)
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar if part != REST))
    colors = {part: COLORS[i % len(COLORS)] for i, part in enumerate(parts)} | {REST: "#BBBBBB"}
    figure = Figure(figsize=(9.6, 1.6 + 0.5 * len(bars)), layout="constrained")
    axes = figure.subplots()
    drawn = set[str]()
    for at, bar in enumerate(reversed(bars.values())):
        total, left = sum(bar.values()), 0.0
        for part, seconds in bar.items():
            label = part if part not in drawn else None
            drawn.add(part)
            axes.barh(at, seconds / total, left=left / total, color=colors[part], label=label)
            left += seconds
        axes.text(1.01, at, plot.duration(total), va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), list(reversed(bars)))
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the least time that the datasheet allows")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    gpu = report["settings"]["gpu"]
    plot.heading(
        figure, f"What an {gpu} would spend its time on", "Compiled, not run. Bars are scaled to one length."
    )
    plot.save(figure, path)


def stacks(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Program -> part -> seconds, the longest first, with cuDNN by its formula where there is one."""
    found: dict[str, dict[str, float]] = {}
    for name, rows in _by_program(report["rows"]).items():
        fused = [row for row in rows if row["cudnn"]]
        kept = fused or rows
        total = sum(row["floor_seconds"] for row in kept)
        large: dict[str, float] = {
            row["part"]: row["floor_seconds"] for row in kept if row["floor_seconds"] > SMALL * total
        }
        found[name] = large | {REST: total - sum(large.values())}
    return found


def _by_program(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        size = f"{row['batch']} x {row['length']}"
        found.setdefault(f"{row['preset']}\n{row['program']} {size}", []).append(row)
    return found
