"""Create machine-readable results: one JSON object per run, with the same keys for every benchmark."""

from typing import Any

from benchmarks.gpu.journal import SCHEMA, save
from benchmarks.machine import cores, facts

__all__ = ["SCHEMA", "new_report", "note_load", "save"]


def new_report(
    benchmark: str,
    command: str,
    settings: dict[str, Any],
    candidates: list[dict[str, Any]],
    notes: list[str],
) -> dict[str, Any]:
    """Return an empty report: the planned measurements, the machine, and the command to repeat them.

    Keys: benchmark, schema, complete (False until the run reaches its end), command, machine, settings,
    candidates, rows (one object per case), agreement, summary, notes (sentences for the reader).
    """
    return {
        "benchmark": benchmark,
        "schema": SCHEMA,
        "complete": False,
        "command": command,
        "machine": facts(),
        "settings": settings,
        "candidates": candidates,
        "rows": [],
        "agreement": [],
        "summary": {},
        "notes": notes,
    }


def note_load(report: dict[str, Any]) -> None:
    """Add a note if other programs took more than a quarter of the cores when the report was begun."""
    if (load := report["machine"]["load_average"] or 0) > cores() / 4:
        report["notes"].append(f"The machine was not idle: load {load:g} at the start, from other programs.")
