"""Replay one step of a run: ``based-jax train replay --workdir runs/a --step 1234``."""

from based_jax import command
from based_jax.training.commands.replay import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
