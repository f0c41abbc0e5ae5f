"""Format the tables of every report on a terminal; `pages` has those in Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from benchmarks.rounding import significant

MIN_WIDTH = 160
"""Width of the widest table; a narrower terminal scrolls or wraps, and numbers are not split."""

PASS_TITLES = {"forward": "forward", "forward_backward": "fwd+bwd"}


def show_markdown(title: str, text: str, notes: Iterable[str], console: Console | None = None) -> None:
    """Print a report that is already Markdown, and its notes."""
    console = console or wide_console()
    console.print(Markdown(f"# {title}\n\n{text}"))
    for line in notes:
        console.print(line, highlight=False)


def show_rows(
    heading: str,
    facts: str,
    tables: Iterable[tuple[Sequence[str], Iterable[Sequence[str]]]],
    notes: Iterable[str],
    left: int = 1,
) -> None:
    """Print a report of tables, columns and rows of each; the first `left` columns are text."""
    console = wide_console()
    console.print(f"\n[bold]{heading}[/], {facts}")
    for columns, rows in tables:
        table = grid(None, "", left=columns[:left], right=columns[left:])
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in notes:
        console.print(line)


def wide_console() -> Console:
    """Return a console that does not fold a table's numbers."""
    console = Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    return console


def grid(title: str | None, caption: str, left: Iterable[str] = (), right: Iterable[str] = ()) -> Table:
    """Return an empty table: columns of text on the left, then columns of numbers."""
    table = Table(box=SIMPLE_HEAD, title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in left:
        table.add_column(column, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def time_and_spread(row: dict[str, Any], repeats: int) -> tuple[str, str]:
    """Format milliseconds and relative quartile range of a measured row; mark missing samples."""
    few = row["samples"] < repeats
    time = f"{'(n=' + str(row['samples']) + ') ' if few else ''}{significant(1000 * row['seconds'])}"
    return time, "cold" if row["cold"] else f"{100 * row['spread']:.0f}%"
