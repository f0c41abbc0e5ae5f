"""Train a tokenizer: ``based-jax train tokenizer --data a.jsonl --vocab-size 8192 --out FILE``."""

from based_jax import command
from based_jax.training.commands.tokenizer import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
