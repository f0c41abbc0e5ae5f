"""Check the statements of Zoology by programs: ``python -m papers.zoology``, which prints one table."""

import sys
from collections.abc import Sequence

from based_jax import command
from papers import statements
from papers.zoology import figure
from papers.zoology.circuits.checks import checks as circuits
from papers.zoology.mqar.checks import checks as mqar
from papers.zoology.primitives.checks import checks as primitives
from papers.zoology.simulations.checks import checks as simulations

PROG = "python -m papers.zoology"

GROUPS = {"primitives": primitives, "circuits": circuits, "simulations": simulations, "mqar": mqar}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `statements.run`."""
    return statements.run(PROG, GROUPS, figure.draw, argv)


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
