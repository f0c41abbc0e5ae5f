"""``tokens:DIR`` where a command takes text, and whose ids the shards in DIR have."""

import dataclasses
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from based_jax.data.shards.reader import TokenShards
from based_jax.data.tokenizers import Tokenizer, load_tokenizer
from based_jax.validate import expect

TOKENS = "tokens:"
"""What a spec of token shards begins with; the directory follows."""


def shard_directory(spec: str) -> Path | None:
    """The directory of token shards that a spec names; None if it names text."""
    return Path(spec.removeprefix(TOKENS)) if spec.startswith(TOKENS) else None


def load_data_tokenizer(specs: Iterable[str], tokenizer: str | None) -> Tokenizer:
    """The tokenizer of the first shards among these sources, if it is the one asked for; else that one.

    Args:
        tokenizer: as of `load_tokenizer`; None is that of the shards, or "byte" where there are none.

    Errors are those of `TokenShards.open` and `load_tokenizer`.
    """
    directory = next(filter(None, map(shard_directory, specs)), None)
    if directory is not None:
        shards = TokenShards.open(directory)
        if tokenizer in (None, shards.manifest.tokenizer.name):  # no other copy of it is needed
            return shards.tokenizer
    return load_tokenizer(tokenizer or "byte")


def expect_no_text_flags(options: Any, *names: str) -> None:
    """Check that these fields of a dataclass, which say how text is read, are left at their defaults.

    `options.data` names shards.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    for name in names:
        value = getattr(options, name)
        expected = f"no such flag with --data {options.data}: train.tokenize chose what its shards hold"
        expect(value == defaults[name], name, value, expected)


def expect_same_tokenizer(shards: TokenShards, tokenizer: Tokenizer) -> None:
    """Check that the ids of shards are those of a model's tokenizer; a ValueError names both."""
    own, record = shards.tokenizer, shards.manifest.tokenizer
    # Both are saved by the same version of the library, which another one may write differently.
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
