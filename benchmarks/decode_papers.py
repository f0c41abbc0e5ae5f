"""Throughput as Based's Table 1 prints it, beside what `decode` measured."""

from collections.abc import Mapping
from typing import Any

from based_jax import published
from benchmarks.analysis import series
from benchmarks.decode_models import ATTENTION, BASED, LABELS, MAMBA
from benchmarks.decode_parts import BATCHES, GENERATE, PREFILL, READ

ROWS = {
    "360m": ({ATTENTION: "360m/10b", BASED: "363m/10b", MAMBA: "358m/10b"}, "16,384"),
    "1.3b": ({ATTENTION: "1.33b/10b", BASED: "1.35b/10b", MAMBA: "1.32b/10b"}, "4,096"),
}
"""Sizes -> the table's rows, and the tokens of its prompts; it generates 2,048 tokens at either size."""


def columns(report: dict[str, Any]) -> dict[str, Mapping[str, float]]:
    """Titles -> tokens per millisecond by model: the paper's, then ours; none if we have none.

    Ours are of the longest prompt and the largest batch that all models have which could run.
    """
    ours = {
        title: column
        for title, column in (
            _ours(report, PREFILL, READ, "prefill of {:,} tokens, here"),
            _ours(report, BATCHES, GENERATE, "generation at batch {:,}, here"),
        )
        if column
    }
    return {**_printed(), **ours} if ours else {}


def ratio(column: Mapping[str, float], other: str) -> float | None:
    """Based over another model; None without both."""
    return column[BASED] / column[other] if {BASED, other} <= column.keys() else None


def _printed() -> dict[str, Mapping[str, float]]:
    table = published.table("based", 1)
    return {
        title: {
            name: published.number(table.row(model=LABELS[name], size=row), column)
            for name, row in rows.items()
        }
        for size, (rows, length) in ROWS.items()
        for column, title in (
            ("prefill", f"prefill of {length} tokens, {size}, paper"),
            ("generate", f"generation, {size}, paper"),
        )
    }


def _ours(report: dict[str, Any], part: str, direction: str, title: str) -> tuple[str, dict[str, float]]:
    rows = [row for row in report["rows"] if row["part"] == part]
    found = ((name, series(rows, name, direction, "tokens_per_second")) for name in LABELS)
    speeds = {name: speed for name, speed in found if speed}
    common = set.intersection(*(set(speed) for speed in speeds.values())) if BASED in speeds else set()
    if not common:
        return title, {}
    largest = max(common)
    return title.format(largest), {name: speed[largest] / 1000 for name, speed in speeds.items()}
