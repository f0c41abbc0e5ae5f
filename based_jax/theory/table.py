"""Format the table of all checked statements on a terminal, as Markdown and as JSON."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from based_jax.theory.check import Check

Rows = Mapping[str, Sequence[Check]]
"""Checks by group."""

MIN_WIDTH = 120
"""Minimum width of the table on a terminal; wider terminals are used in full."""

COLUMNS: tuple[tuple[str, Callable[[Check], str]], ...] = (
    ("statement", lambda check: check.statement),
    ("source", lambda check: check.source),
    ("checked", lambda check: check.checked),
    ("sizes", lambda check: check.sizes),
    ("layers", lambda check: _count(check.layers)),
    ("bound", lambda check: check.layer_bound),
    ("parameters", lambda check: _count(check.parameters)),
    ("bound", lambda check: check.parameter_bound),
    ("error", lambda check: _error(check)),
    ("holds", lambda check: "yes" if check.holds else "NO"),
)
"""Columns of the Markdown table."""


def show(rows: Rows, console: Console | None = None) -> None:
    """Print the table for reading: a statement over its source, the comparison over the sizes."""
    console = console or Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    table = Table(box=SIMPLE_HEAD, title="Statements of the papers, run", title_justify="left", expand=True)
    table.add_column(_over("statement", "source"), ratio=8)
    table.add_column(_over("what was compared", "sizes"), ratio=8)
    table.add_column(_over("layers", "the bound"), ratio=4)
    table.add_column(_over("parameters", "the bound"), ratio=4)
    table.add_column("error", justify="right", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    for group, checks in rows.items():
        table.add_row(Text(group, "bold"))
        for position, check in enumerate(checks):
            table.add_row(
                _over(check.statement, check.source),
                _over(check.checked, check.sizes),
                _over(_count(check.layers), check.layer_bound),
                _over(_count(check.parameters), check.parameter_bound),
                _error(check),
                Text("yes") if check.holds else Text("NO", "bold red"),
                end_section=position == len(checks) - 1,
            )
    console.print(table)


def markdown(rows: Rows) -> str:
    """Return the table as Markdown; the name of each group has a row of its own."""
    names = [name for name, _ in COLUMNS]
    lines = [names, ["---:" if name == "error" else "---" for name in names]]
    for group, checks in rows.items():
        lines.append([f"**{group}**"] + [""] * (len(names) - 1))
        lines += [[re.sub(r"[|*_~]", r"\\\g<0>", cell(check)) for _, cell in COLUMNS] for check in checks]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def records(rows: Rows) -> list[dict[str, Any]]:
    """Return a record for each row, for JSON: the fields of `Check`, its group and whether it holds.

    An error that is not finite is None.
    """

    def record(group: str, check: Check) -> dict[str, Any]:
        error = float(check.error) if math.isfinite(check.error) else None
        return {"group": group, **asdict(check), "error": error, "holds": bool(check.holds)}

    return [record(group, check) for group, checks in rows.items() for check in checks]


def failures(rows: Rows) -> list[str]:
    """Return a line for each statement that does not hold."""
    return [
        f"{check.source}: {check.statement}: error {check.error:.1e}, tolerance {check.tolerance:.1e}"
        for checks in rows.values()
        for check in checks
        if not check.holds
    ]


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _error(check: Check) -> str:
    return "0" if check.error == 0 else f"{check.error:.1e}"


def _over(first: str, second: str) -> Text:
    return Text(f"{first}\n").append(second, "dim") if second else Text(first)
