"""Share option checks and the output of results between the evaluations."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from based_jax.validate import expect


def expect_positive(options: Any, *names: str) -> None:
    """Check that these fields are None or at least 1."""
    for name in names:
        value = getattr(options, name)
        expect(value is None or value >= 1, name, value, "at least 1")


def expect_writable(options: Any, *names: str) -> None:
    """Check that files in these fields are None or in an existing directory."""
    for name in names:
        path = getattr(options, name)
        expect(path is None or path.parent.is_dir(), name, str(path), "a file in an existing directory")


def as_text(options: Any) -> dict[str, str]:
    """Return the fields that are set, as strings for a results file."""
    return {name: str(value) for name, value in dataclasses.asdict(options).items() if value is not None}


def print_table(table: Table) -> None:
    """Print a table, as wide as the terminal or, without one, as its rows."""
    Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(table)


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]], **how: Any) -> None:
    """Write a line per row, creating the file's directory if needed; `how` goes to `json.dumps`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False, **how) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def write_json(path: Path | None, content: Any) -> None:
    """Write a result unless `path` is None, creating the file's directory if needed."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
