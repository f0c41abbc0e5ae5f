"""Check the papers' statements by programs: ``python -m based_jax.theory``, which prints one table."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from rich.console import Console

from based_jax import command, plot
from based_jax.theory import figures
from based_jax.theory.check import Check
from based_jax.theory.table import failures, markdown, records, show
from based_jax.validate import expect

PROG = "python -m based_jax.theory"

Group = Literal["primitives", "circuits", "simulations", "mqar", "bounds"]

GROUPS: dict[Group, tuple[str, ...]] = {
    "primitives": ("checks",),
    "circuits": ("checks",),
    "simulations": ("checks", "butterfly_checks"),
    "mqar": ("checks", "base_conv_checks"),
    "bounds": ("state_checks", "degree_checks"),
}
"""The modules of each group that have rows; imported when their group runs."""


@dataclass(frozen=True)
class Flags:
    """Run the statements of Based and Zoology: constructions and bounds, against the direct computation."""

    only: tuple[Group, ...] = ()
    """groups of statements; default all"""
    seed: int = 0
    """seed of the random instances"""
    markdown: bool = False
    """print the table as Markdown"""
    json: Path | None = None
    """JSON file for the rows"""
    figures: Path | None = None
    """draw the figures of docs/theory.md into this directory instead"""
    study: Path | None = None
    """a directory of based_jax.experiments.mqar_tradeoff, whose models are added to the last figure"""

    def __post_init__(self) -> None:
        expect(self.seed >= 0, "seed", self.seed, "at least 0")
        known = self.json is None or self.json.parent.is_dir()
        expect(known, "json", str(self.json), "a file in an existing directory")
        known = self.figures is None or self.figures.is_dir()
        expect(known, "figures", str(self.figures), "an existing directory")
        known = self.study is None or (self.study / "study.json").is_file()
        expect(known, "study", str(self.study), "a directory with study.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a statement does not hold."""
    flags = command.parse(Flags, argv, prog=PROG)
    if flags.figures is not None:
        return _draw(flags.figures, flags.study)
    rows = {group: _rows(group, flags.seed) for group in GROUPS if not flags.only or group in flags.only}
    if flags.json is not None:
        report = {"seed": flags.seed, "rows": records(rows)}
        flags.json.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if flags.markdown:
        print(markdown(rows))
    else:
        show(rows)
    missed = failures(rows)
    for line in missed:
        print(f"does not hold: {line}", file=sys.stderr)
    return 1 if missed else 0


def _draw(directory: Path, study: Path | None) -> int:
    if (reason := plot.missing()) is not None:
        print(f"{command.name_of(PROG)}: {reason}", file=sys.stderr)
        return 2
    for path in figures.draw(directory, study):
        print(path)
    return 0


def _rows(group: Group, seed: int) -> list[Check]:
    """Return the rows of a group, and print a line on stderr when they are ready."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    began = time.perf_counter()
    with console.status(f"{group} ..."):
        modules = [import_module(f"based_jax.theory.{group}.{name}") for name in GROUPS[group]]
        rows = [check for module in modules for check in module.checks(seed)]
    console.print(f"{group}: {len(rows)} statements in {time.perf_counter() - began:.1f} s")
    return rows


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
