"""Tokenize text into shards: ``based-jax train tokenize --data a.jsonl --tokenizer byte --out DIR``."""

from based_jax import command
from based_jax.training.commands.tokenize import PROG, main

if __name__ == "__main__":
    command.run(PROG, main)
