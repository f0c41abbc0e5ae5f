"""Compare the throughput in Based's Table 1 with `decode`'s measurements."""

from collections.abc import Mapping
from typing import Any

from based_jax.published.throughput import throughput
from benchmarks.analysis import series
from benchmarks.decode.models import BASED, LABELS
from benchmarks.decode.parts import BATCHES, GENERATE, PREFILL, READ


def columns(report: dict[str, Any]) -> dict[str, Mapping[str, float]]:
    """Return titles -> tokens per millisecond by model: the paper's, then ours; empty without any of ours.

    Ours are for the longest prompt and the largest batch that all models could run.
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
    """Return Based's number over another model's; None unless both exist."""
    return column[BASED] / column[other] if {BASED, other} <= column.keys() else None


def _printed() -> dict[str, Mapping[str, float]]:
    names = {label: name for name, label in LABELS.items()}
    return {
        title: {names[label]: speed for label, speed in column.items()}
        for title, column in throughput().items()
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
