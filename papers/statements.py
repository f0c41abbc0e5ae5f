"""Check a paper's statements by programs, and print them as tables."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from based_jax import command, markdown, plot
from based_jax.validate import expect, expect_choice
from papers.check import Check

Groups = Mapping[str, Callable[[int], Iterable[Check]]]
"""Group of statements -> a function from the seed of the random instances to its rows."""


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
    """Print a table of each group: statements, what was compared, counts and bounds, and errors."""
    heads = ("statement", "source", "compared", "sizes", "layers", "bound", "parameters", "bound", "error")
    for group, checks in rows.items():
        lines = [
            [
                *(check.statement, check.source, check.checked, check.sizes),
                *(_count(check.layers), check.layer_bound, _count(check.parameters), check.parameter_bound),
                f"{check.error:.1e}" + ("" if check.holds else " DOES NOT HOLD"),
            ]
            for check in checks
        ]
        print(f"## {group}\n", *markdown.table(heads, lines, words=range(4)), "", sep="\n")


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
