"""Cache text that was tokenized in memory as token shards, so that the next start reads no text.

    DIR/KEY/manifest.json, tokenizer.json, train/..., held_out/...      one shard per split; see `manifest`
    DIR/KEY/summary.json                                                the run's summary of the text

KEY is a digest of everything that the tokens depend on. Both splits are the same streams as without a cache.
"""

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from based_jax.data.hub import HUB
from based_jax.data.packed import PackedTokens
from based_jax.data.shards.manifest import (
    FILE,
    HeldOutRule,
    Manifest,
    Shard,
    SourceRecord,
    Split,
    TokenizerRecord,
    shard_file,
    token_dtype,
)
from based_jax.data.shards.reader import TokenShards
from based_jax.data.sources import find_files
from based_jax.data.tokenizers import Tokenizer
from based_jax.files import read_json
from based_jax.validate import expect
from based_jax.whole_file import raw_bytes

_SUMMARY = "summary.json"


class PackedText(NamedTuple):
    """The training and held-out splits of a text, and a human-readable summary."""

    training: PackedTokens
    held_out: PackedTokens
    summary: dict[str, str]


def load_cached(
    directory: Path,
    spec: str,
    include: str | None,
    rule: HeldOutRule,
    tokenizer: Tokenizer,
    read: Callable[[], PackedText],
) -> PackedText:
    """Return the result of `read`, from `directory` if cached for the same files, rule and tokenizer.

    Args:
        spec, include: name the files, see `based_jax.data.sources`; files are compared by name, size and
            modification time.
        rule: how the held-out split is chosen.

    Raises:
        ValueError: a spec that names no files, or a cached shard that is damaged.
        OSError: the directory cannot be written.
    """
    expect(not spec.startswith(HUB), "cache", str(directory), f"files as --data, not {spec}")
    source = _source(spec, include)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".unfinished-") as scratch:
        unfinished = Path(scratch, "text")
        tokenizer.save(unfinished)
        digest = hashlib.sha256((unfinished / "tokenizer.json").read_bytes()).hexdigest()
        key = hashlib.sha256(repr((source, rule, digest)).encode()).hexdigest()[:16]
        kept = directory / key
        if not (kept / FILE).is_file():
            record = TokenizerRecord(tokenizer.name, tokenizer.vocab_size, tokenizer.eot, digest)
            text = read()
            _write(unfinished, text, source, rule, record)
            if _source(spec, include) != source:  # the files changed during reading
                return text
            try:
                os.rename(unfinished, kept)
            except OSError:  # another process was faster
                expect((kept / FILE).is_file(), "cache", str(kept), "a directory that can be written")
    training = TokenShards.open(kept, "train").shard(0)
    held_out = TokenShards.open(kept, "held_out").shard(0)
    return PackedText(training, held_out, read_json(kept / _SUMMARY) | {"cache": str(kept)})


def _source(spec: str, include: str | None) -> SourceRecord:
    files = find_files(spec, [], include).found
    paths = [(name, path.stat()) for name, path, _ in files if path.exists()]
    found = [(name, status.st_size, status.st_mtime_ns) for name, status in paths]
    digest = hashlib.sha256(repr(found).encode()).hexdigest()
    return SourceRecord(spec, include, len(found), sum(size for _, size, _ in found), digest)


def _write(
    directory: Path, text: PackedText, source: SourceRecord, rule: HeldOutRule, record: TokenizerRecord
) -> None:
    dtype = token_dtype(record.vocab_size)
    sides = {"train": text.training, "held_out": text.held_out}
    shards = {side: _write_shard(directory, side, packed, dtype) for side, packed in sides.items()}
    splits = {side: Split.of([shard]) for side, shard in shards.items()}
    (directory / _SUMMARY).write_text(json.dumps(text.summary), encoding="utf-8")
    most = max(split.tokens for split in splits.values())
    Manifest(record, dtype.name, (source,), rule, most, {}, splits).write(directory)


def _write_shard(directory: Path, side: str, packed: PackedTokens, dtype: np.dtype) -> Shard:
    tokens, starts = packed.tokens.astype(dtype, copy=False), packed.starts
    sums = zlib.crc32(raw_bytes(tokens)), zlib.crc32(raw_bytes(starts))
    shard = Shard(shard_file(side, 0), starts.size, tokens.size, packed.num_bytes, *sums)
    (directory / side).mkdir()
    np.save(directory / shard.file, tokens)
    np.save(directory / shard.starts_file, starts)
    return shard
