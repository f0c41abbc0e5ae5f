"""Check a paper's statements by programs, and print them as one table."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from based_jax import command, plot
from based_jax.validate import expect, expect_choice
from papers.check import Check

Groups = Mapping[str, Callable[[int], Iterable[Check]]]
"""Group of statements -> a function from the seed of the random instances to its rows."""

MIN_WIDTH = 120
"""Minimum width of the table; wider terminals are used in full."""


@dataclass(frozen=True)
class Flags:
    """Run the statements of a paper: constructions and bounds, against the direct computation."""

    only: tuple[str, ...] = ()
    """groups of statements; default all"""
    seed: int = 0
    """seed of the random instances"""
    figures: Path | None = None
    """draw the figures of the paper's README.md into this directory instead"""

    def __post_init__(self) -> None:
        expect(self.seed >= 0, "seed", self.seed, "at least 0")
        known = self.figures is None or self.figures.is_dir()
        expect(known, "figures", str(self.figures), "an existing directory")


def run(prog: str, groups: Groups, draw: Callable[[Path], Iterable[Path]], argv: Sequence[str] | None) -> int:
    """Run the command of a paper; the exit status is 1 if a statement does not hold.

    `draw` draws the figures into a directory and returns their paths.
    """
    flags = command.parse(Flags, argv, prog=prog)
    for group in flags.only:
        expect_choice("only", group, tuple(groups))
    if flags.figures is not None:
        if (reason := plot.missing()) is not None:
            command.fail(prog, reason)
        print(*draw(flags.figures), sep="\n")
        return 0
    rows = {group: _rows(group, groups[group], flags.seed) for group in flags.only or groups}
    show(rows)
    missed = [check for checks in rows.values() for check in checks if not check.holds]
    for check in missed:
        why = f"error {check.error:.1e}, tolerance {check.tolerance:.1e}"
        print(f"does not hold: {check.source}: {check.statement}: {why}", file=sys.stderr)
    return 1 if missed else 0


def _rows(group: str, checks: Callable[[int], Iterable[Check]], seed: int) -> list[Check]:
    """Return the rows of a group, and print a line on stderr when they are ready."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    began = time.perf_counter()
    with console.status(f"{group} ..."):
        rows = list(checks(seed))
    console.print(f"{group}: {len(rows)} statements in {time.perf_counter() - began:.1f} s")
    return rows


def show(rows: Mapping[str, Sequence[Check]]) -> None:
    """Print the table: a statement over its source, the comparison over the sizes."""
    console = Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    table = Table(box=SIMPLE_HEAD, title="Statements of the paper, run", title_justify="left", expand=True)
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
                "0" if check.error == 0 else f"{check.error:.1e}",
                Text("yes") if check.holds else Text("NO", "bold red"),
                end_section=position == len(checks) - 1,
            )
    console.print(table)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _over(first: str, second: str) -> Text:
    return Text(f"{first}\n").append(second, "dim") if second else Text(first)
