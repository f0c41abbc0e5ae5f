"""Share option checks, progress and the output of results between the evaluations."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from based_jax.validate import expect


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


def write_json(path: Path | None, content: Any) -> None:
    """Write a result unless `path` is None, creating the file's directory if needed."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_SECONDS = 20.0
"""Seconds between lines where there is no terminal."""


@contextlib.contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show the progress of work.

    Args:
        total: units of work; None if unknown.
        unit: in the plural, such as "tokens".

    Yields:
        A function to call with the number of units done since the last call.
    """
    done, begin = 0, time.perf_counter()
    last = begin
    columns = (TextColumn(label), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    shown = {"console": Console(stderr=True), "disable": not sys.stderr.isatty()}
    bar = Progress(*columns, TextColumn("{task.description}"), **shown)
    task = bar.add_task("", total=total)

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.perf_counter()
        rate = f"{done:,} {unit}, {done / max(now - begin, 1e-9):,.0f} per second"
        bar.update(task, completed=done, description=rate)
        if not sys.stderr.isatty() and now - last >= _SECONDS:
            last = now
            print(f"{label}: {rate}", file=sys.stderr, flush=True)

    with bar:
        yield advance
