"""Linearize attention: ``based-jax train linearize --from DIR --to taylor --window 64 --workdir runs/a``."""

from based_jax import command
from based_jax.training.commands.linearize import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
