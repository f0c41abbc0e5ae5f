"""Frame reports on training: ours and torch's take turns, and must compute the same."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from benchmarks import report
from benchmarks.ops.candidates import Candidate
from benchmarks.study import INTERRUPTED


def make_report(
    name: str,
    command: str,
    settings: dict[str, Any],
    candidates: Iterable[Candidate],
    measure: Callable[[dict[str, Any], Console], bool],
    tables: ModuleType,
    *,
    json: Path | None,
    markdown: Path | None,
) -> int:
    """Measure, print and write a report.

    Args:
        name, command, settings: of the benchmark.
        candidates: the candidates that the report describes.
        measure: fills the report's rows and its agreement; returns False after Ctrl-C.
        tables: `show(report)` and `insert(page, report)`.
        json, markdown: files to write.

    Returns:
        The exit status: 0, 1 if JAX and torch disagree, 130 after Ctrl-C.
    """
    described = [{"name": c.name, "label": c.label, "framework": c.framework} for c in candidates]
    notes: list[str] = []
    results = report.new_report(name, command, settings, described, notes)
    report.note_load(results)
    progress = Console(stderr=True, highlight=False)
    results["complete"] = measure(results, progress)
    if not results["complete"]:
        notes.append(INTERRUPTED)
    if json:
        report.save(results, json)
    tables.show(results)
    if markdown:
        markdown.write_text(tables.insert(markdown.read_text(), results))
    for path in filter(None, (json, markdown)):
        progress.print(f"wrote {path}")
    agrees = all(entry["agrees"] for entry in results["agreement"])
    return 130 if not results["complete"] else 0 if agrees else 1
