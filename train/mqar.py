"""Train on multi-query associative recall: ``based-jax train mqar --mixer based --workdir runs/recall``."""

from based_jax import command
from based_jax.training.commands.mqar import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
