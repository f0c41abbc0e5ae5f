"""Create machine-readable results: one JSON object per run, with the same keys for every benchmark."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import tables
from benchmarks.gpu.journal import SCHEMA, save
from benchmarks.machine import cores, facts

__all__ = [
    "INTERRUPTED",
    "SCHEMA",
    "Files",
    "make",
    "new_report",
    "note_load",
    "on_page",
    "save",
    "say",
    "write",
]

INTERRUPTED = "Interrupted by Ctrl-C: this is what was measured until then."
"""Note of a report whose measurement did not reach its end."""

Report = dict[str, Any]


class Files(NamedTuple):
    """What a run writes, as far as it is given."""

    json: Path | None = None
    """every number"""
    markdown: Path | None = None
    """a page, whose tables are between two comments"""
    marker: str = ""
    """name in these comments; the benchmark's by default"""
    plot: Path | None = None
    """the figure, for the benchmarks of `figures.draw`"""


def new_report(
    benchmark: str,
    command: str,
    settings: dict[str, Any],
    candidates: list[dict[str, Any]],
    notes: list[str],
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
    report: Report, measure: Callable[[], bool], title: str, text: Callable[[Report], str], files: Files
) -> int:
    """Measure into a new report, print it and write it.

    Args:
        measure: fills the report's rows and its agreement; returns False after Ctrl-C.
        text: a report's tables, in Markdown.

    Returns:
        The exit status: 0, 1 if two candidates disagree, 130 after Ctrl-C.
    """
    with contextlib.suppress(KeyboardInterrupt):
        report["complete"] = measure()
    if not report["complete"]:
        report["notes"].append(INTERRUPTED)
    write(report, title, text, files)
    agrees = all(entry.get("agrees", True) for entry in report["agreement"])
    return 130 if not report["complete"] else 0 if agrees else 1


def write(report: Report, title: str, text: Callable[[Report], str], files: Files) -> None:
    """Print a report and write its files; see `make`."""
    if files.json:
        save(report, files.json)
    tables.show(title, text(report), report["notes"])
    if files.plot:
        from benchmarks import figures

        figures.draw(report, files.plot)
    if files.markdown:
        name = files.marker or report["benchmark"]
        page = files.markdown.read_text()
        files.markdown.write_text(tables.insert(page, name, on_page(report, text)))
    for path in filter(None, (files.json, files.markdown, files.plot)):
        say(f"wrote {path}")


def on_page(report: Report, text: Callable[[Report], str]) -> str:
    """Return what a page has of a report: its tables and notes."""
    return tables.blocks(text(report), *report["notes"])


def say(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)
