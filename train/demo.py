"""``make demo``: train a byte-level Based on Python's own source in minutes, then sample from it."""

from based_jax import command
from based_jax.training.commands.demo import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
