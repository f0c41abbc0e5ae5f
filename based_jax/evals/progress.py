"""Show the progress of long work on stderr, as a bar or as occasional lines."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

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
