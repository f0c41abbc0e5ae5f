"""Classify sequences: ``based-jax train classify --checkpoint runs/dna --data DIR --workdir runs/a``."""

from based_jax import command
from based_jax.training.commands.classify import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
