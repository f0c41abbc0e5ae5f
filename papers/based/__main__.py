"""Check the statements of Based by programs: ``python -m papers.based``, which prints one table."""

import sys
from collections.abc import Sequence

from based_jax import command
from papers import statements
from papers.based import figure
from papers.based.bounds.degree_checks import checks as degrees
from papers.based.bounds.state_checks import checks as states
from papers.based.mqar.checks import checks as mqar

PROG = "python -m papers.based"

GROUPS = {"states": states, "degrees": degrees, "mqar": mqar}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `statements.run`."""
    return statements.run(PROG, GROUPS, figure.draw, argv)


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
