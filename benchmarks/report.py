"""Create machine-readable results: one JSON object per run, with the same keys for every benchmark."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.gpu.journal import SCHEMA, save
from benchmarks.machine import cores, facts

INTERRUPTED = "Interrupted by Ctrl-C: this is what was measured until then."
"""Note of a report whose measurement did not reach its end."""

Report = dict[str, Any]


def new_report(
    benchmark: str, command: str, settings: dict[str, Any], candidates: list[dict[str, Any]], notes: list[str]
) -> Report:
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


def note_load(report: Report) -> None:
    """Add a note if other programs took more than a quarter of the cores when the report was begun."""
    if (load := report["machine"]["load_average"] or 0) > cores() / 4:
        report["notes"].append(f"The machine was not idle: load {load:g} at the start, from other programs.")


def make(
    report: Report, measure: Callable[[], bool], title: str, text: Callable[[Report], str], json: Path | None
) -> int:
    """Measure into a new report, print it and write it.

    Args:
        measure: fills the report's rows and its agreement; returns False after Ctrl-C.
        text: a report's tables, in Markdown.
        json: the file with every number, if any.

    Returns:
        The exit status: 0, 1 if two candidates disagree, 130 after Ctrl-C.
    """
    with contextlib.suppress(KeyboardInterrupt):
        report["complete"] = measure()
    if not report["complete"]:
        report["notes"].append(INTERRUPTED)
    if json:
        save(report, json)
        say(f"wrote {json}")
    tables.show(title, text(report), report["notes"])
    agrees = all(entry.get("agrees", True) for entry in report["agreement"])
    return 130 if not report["complete"] else 0 if agrees else 1


def say(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)
