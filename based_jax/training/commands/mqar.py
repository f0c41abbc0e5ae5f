"""Train on multi-query associative recall: ``based-jax train mqar --mixer based --learning-rates 1e-3,3e-3``.

The older name of `train synthetic`, whose default task is this one.
"""

from collections.abc import Sequence

from based_jax.training.commands import synthetic

PROG = "based-jax train mqar"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `based_jax.training.commands.synthetic`."""
    return synthetic.main(argv, PROG)
