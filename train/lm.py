"""Train a language model: ``based-jax train lm --preset based-tiny --data stdlib --workdir runs/a``."""

from based_jax import command
from based_jax.training.commands.lm import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
