"""Directories of token shards, written with NumPy alone."""

import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from based_jax.data import ByteTokenizer, Tokenizer
from based_jax.data.shards.manifest import (
    HeldOutRule,
    Manifest,
    Shard,
    Split,
    TokenizerRecord,
    shard_file,
    token_dtype,
)

Shards = Sequence[Sequence[str]]
"""The documents of each shard."""


def write_shards(
    directory: Path, train: Shards, held_out: Shards = (), tokenizer: Tokenizer | None = None
) -> Path:
    """Write both sides of a directory; returns it."""
    tokenizer = tokenizer or ByteTokenizer()
    tokenizer.save(directory)
    digest = hashlib.sha256((directory / "tokenizer.json").read_bytes()).hexdigest()
    record = TokenizerRecord(tokenizer.name, tokenizer.vocab_size, tokenizer.eot, digest)
    sides = {"train": train, "held_out": held_out}
    splits = {side: _write_side(directory, side, shards, tokenizer) for side, shards in sides.items()}
    dtype = token_dtype(tokenizer.vocab_size).name
    rule = HeldOutRule(0.1, None, None)
    Manifest(record, dtype, (), rule, 1 << 20, {"empty": 3}, splits).write(directory)
    return directory


def _write_side(directory: Path, side: str, shards: Shards, tokenizer: Tokenizer) -> Split:
    (directory / side).mkdir()
    written = []
    for number, texts in enumerate(shards):
        documents = [np.append(tokenizer.eot, tokenizer.encode(text)) for text in texts]
        tokens = np.append(np.concatenate(documents), tokenizer.eot).astype(token_dtype(tokenizer.vocab_size))
        starts = np.cumsum([0, *map(len, documents[:-1])], dtype=np.int64)
        file = shard_file(side, number)
        sizes = len(texts), tokens.size, sum(len(text.encode()) for text in texts)
        shard = Shard(file, *sizes, zlib.crc32(tokens.tobytes()), zlib.crc32(starts.tobytes()))
        np.save(directory / shard.file, tokens)
        np.save(directory / shard.starts_file, starts)
        written.append(shard)
    return Split.of(written)
