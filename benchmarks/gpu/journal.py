"""Reports on disk: complete ones as one JSON object, and rows of a section as they come, one per line.

A report has the keys benchmark (the command), schema, complete, command, machine, settings, rows, and others
of the command. Nothing here imports JAX: supervising and reading do not need it.
"""

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

SCHEMA = 2
"""Version; increased if a key changes its name or meaning."""

BEGUN, DONE, STOPPED, COMPLETE = MARKS = "begun", "done", "stopped", "complete"
"""Statuses of lines that are no results: what runs next, a step's end, the process's end from outside, the
section's end."""

SPENT = "the minutes were spent"


def save(report: Mapping[str, Any], path: Path) -> None:
    """Write the report atomically, one line per row: a process killed meanwhile leaves the old file.

    A value that JSON cannot represent (NaN) is a bug and raises ValueError.
    """
    head = json.dumps({key: report[key] for key in report if key != "rows"}, indent=1, allow_nan=False)
    rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in report["rows"])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n')
    partial.replace(path)


def load(path: Path, benchmarks: Collection[str]) -> dict[str, Any]:
    """Read a report of one of the commands `benchmarks`.

    Raises:
        ValueError: the file is not such a report; the message names it.
        OSError: the file cannot be read.
    """
    try:
        report = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON, or cut off ({error})") from None
    if not isinstance(report, dict) or not {"benchmark", "schema", "machine", "rows"} <= report.keys():
        raise ValueError(f"{path}: expected a report, with benchmark, schema, machine and rows")
    if report["benchmark"] not in benchmarks:
        raise ValueError(f"{path}: a report of {report['benchmark']!r}; expected {' or '.join(benchmarks)}")
    if report["schema"] != SCHEMA:
        raise ValueError(f"{path}: has schema {report['schema']!r}; this version reads {SCHEMA}")
    return report


def append(row: Mapping[str, Any], path: Path) -> None:
    """Add a line to a section's journal. Numbers that are not finite become null, as JSON has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(_finite(row)) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a section's journal, none without one. The last one may be cut off."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def is_complete(path: Path) -> bool:
    """Return whether a section has run to its end."""
    return any(row["status"] == COMPLETE for row in lines(path))


def results(path: Path) -> list[dict[str, Any]]:
    """Return the results in a section's journal, each step's once it did fit into the time."""
    rows = lines(path)
    done = {row["step"] for row in rows if row["status"] == DONE}
    rows = [row for row in rows if row["status"] not in MARKS]
    return [row for row in rows if row.get("reason") != SPENT or row["step"] not in done]


def _finite(value: Any) -> Any:
    """Return `value` with None for each float in it that is not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
