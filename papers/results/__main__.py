"""Write the page of published results, papers/results/README.md: ``python -m papers.results``."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from based_jax import command
from based_jax.validate import expect
from papers.results.measured import Results
from papers.results.page import page

PROG = "python -m papers.results"


@dataclass(frozen=True)
class Options:
    """Write every published table next to our values."""

    results: Path = Path("results")
    """directory with our results: evals/*.json and the directories of studies"""
    out: Path = Path("papers/results/README.md")
    """file of the page"""
    check: bool = False
    """compare with the page instead of writing it; the exit status is 1 if it differs"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = command.parse(Options, argv, prog=PROG)
    expect(options.out.parent.is_dir(), "out", str(options.out), "a file in an existing directory")
    results = Results(options.results)
    for unused in results.unused():
        print(f"{unused.path}: {unused.run} is no published model, so no cell is filled", file=sys.stderr)
    text = page(results)
    if not options.check:
        options.out.write_text(text, encoding="utf-8")
    elif not options.out.is_file() or options.out.read_text(encoding="utf-8") != text:
        print(f"{options.out} is not up to date: run {PROG}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    command.run(PROG, main)
