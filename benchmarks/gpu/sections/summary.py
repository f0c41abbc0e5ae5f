"""Summarize a report: number of rows, targets, and a table for the documentation."""

from typing import Any

from benchmarks.gpu.sections.targets import Rows, targets


def summary(rows: Rows) -> dict[str, Any]:
    """Return the rows of each status by section, the targets, and their table of [what, wanted, measured]."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        section = counts.setdefault(row["section"], {})
        section[row["status"]] = section.get(row["status"], 0) + 1
    found = targets(rows)
    tables = {"targets": [target.row() for target in found]}
    return {"rows": counts, "targets": [target.as_dict() for target in found], "tables": tables}
