"""Accept ``tokens:DIR`` where a command takes text, and check its tokenizer."""

import dataclasses
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from based_jax.data.shards.reader import TokenShards
from based_jax.data.tokenizers import Tokenizer, load_tokenizer
from based_jax.validate import expect

TOKENS = "tokens:"
"""Prefix of a spec of token shards; the directory follows."""


def shard_directory(spec: str) -> Path | None:
    """Return the directory of token shards in a spec; None if it is text."""
    return Path(spec.removeprefix(TOKENS)) if spec.startswith(TOKENS) else None


def open_tokens(directory: Path, side: Literal["train", "held_out"], tokenizer: Tokenizer) -> TokenShards:
    """Open one split of the result of `shard_directory`; its ids must be those of the tokenizer.

    Errors: see `TokenShards.open` and `expect_same_tokenizer`.
    """
    shards = TokenShards.open(directory, side)
    expect_same_tokenizer(shards, tokenizer)
    return shards


def load_data_tokenizer(specs: Iterable[str], tokenizer: str | None) -> Tokenizer:
    """Load the tokenizer of the first shards among these sources if it is the requested one, else the latter.

    Args:
        tokenizer: see `load_tokenizer`; None for that of the shards, or "byte" if there are none.

    Errors: see `TokenShards.open` and `load_tokenizer`.
    """
    directory = next(filter(None, map(shard_directory, specs)), None)
    if directory is not None:
        shards = TokenShards.open(directory)
        if tokenizer in (None, shards.manifest.tokenizer.name):  # the shards' own copy suffices
            return shards.tokenizer
    return load_tokenizer(tokenizer or "byte")


def expect_no_text_flags(options: Any, *names: str) -> None:
    """Check that these fields of a dataclass, which only affect reading text, have their defaults.

    `options.data` names shards.
    """
    for field in dataclasses.fields(options):
        value, default = getattr(options, field.name), field.default
        if field.name in names and dataclasses.is_dataclass(value):
            inner = [field.name for field in dataclasses.fields(value)]
            values = [(name, getattr(value, name), getattr(default, name)) for name in inner]
        else:
            values = [(field.name, value, default)] if field.name in names else []
        for name, given, usual in values:
            expected = f"no such flag with --data {options.data}: it only affects reading text"
            expect(given == usual, name, given, expected)


def expect_same_tokenizer(shards: TokenShards, tokenizer: Tokenizer) -> None:
    """Check that the ids of shards are those of a model's tokenizer; a ValueError names both."""
    own, record = shards.tokenizer, shards.manifest.tokenizer
    # Save both with the same version of the library: versions may write files differently.
    if own is not tokenizer and _saved(own) != _saved(tokenizer):
        expected = (
            f"that of the shards in {shards.directory}: {record.name!r} with {record.vocab_size} tokens"
        )
        given = f"{tokenizer.name!r} with {tokenizer.vocab_size} tokens"
        raise ValueError(f"tokenizer = {given}: expected {expected}")


def _saved(tokenizer: Tokenizer) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return Path(folder, "tokenizer.json").read_bytes()
