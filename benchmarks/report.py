"""The machine-readable result: one JSON object per run, the same envelope for every benchmark."""

import json
from pathlib import Path
from typing import Any

from benchmarks.machine import facts

SCHEMA = 1
"""Raised when a key changes its meaning."""


def new_report(
    benchmark: str,
    command: str,
    settings: dict[str, Any],
    contestants: list[dict[str, Any]],
    notes: list[str],
) -> dict[str, Any]:
    """An empty report: what is going to be measured, where, and how to do it again.

    Keys: benchmark, schema, complete (False until the run reaches its end), command, machine, settings,
    contestants, rows (one object per case), agreement, summary, notes (sentences for the reader).
    """
    return {
        "benchmark": benchmark,
        "schema": SCHEMA,
        "complete": False,
        "command": command,
        "machine": facts(),
        "settings": settings,
        "contestants": contestants,
        "rows": [],
        "agreement": [],
        "summary": {},
        "notes": notes,
    }


def save(report: dict[str, Any], path: Path) -> None:
    """Write the report in one move: a process killed meanwhile leaves the old file.

    A value that JSON has no word for (nan) is a mistake of ours and raises ValueError.
    """
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    partial.replace(path)
