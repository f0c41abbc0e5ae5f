"""Whether two tokenizers are the same one: what they save is what they are."""

import tempfile
from pathlib import Path

from based_jax.data.shards.reader import TokenShards
from based_jax.data.tokenizers import Tokenizer


def expect_same_tokenizer(shards: TokenShards, tokenizer: Tokenizer) -> None:
    """Check that the ids of shards are those of a model's tokenizer; a ValueError names both."""
    own, record = shards.tokenizer, shards.manifest.tokenizer
    # Both are saved by the same version of the library, which another one may write differently.
    is_same = own is tokenizer or _saved(own) == _saved(tokenizer)
    given = f"{tokenizer.name!r} with {tokenizer.vocab_size} tokens"
    expected = f"that of the shards in {shards.directory}: {record.name!r} with {record.vocab_size} tokens"
    if not is_same:
        raise ValueError(f"tokenizer = {given}: expected {expected}")


def _saved(tokenizer: Tokenizer) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return Path(folder, "tokenizer.json").read_bytes()
