"""Train on a synthetic task: ``based-jax train synthetic --task forgetting --mixer based``."""

from based_jax import command
from based_jax.training.commands.synthetic import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
