"""Write a synthetic corpus of any size: compressed JSON lines and Parquet, and a tokenizer trained on it.

A document is a run of random lines of Python's own standard library. So no two documents are alike, words
and indentation are as frequent as in real text, and writing takes a fraction of the time that encoding takes.
"""

import gzip
import json
import sysconfig
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
import zstandard

FORMATS = (".jsonl.zst", ".jsonl.gz", ".jsonl", ".parquet")
"""Suffixes of the files, in turn."""

FILE_BYTES = 1 << 28
"""Bytes of text per file."""

DOCUMENT_LINES = 150
"""Mean number of lines of a document, which are geometrically distributed: 5.3 kB of text."""

_GROUP = 1_000  # documents written together
_OPEN: dict[str, Callable[..., Any]] = {".zst": zstandard.open, ".gz": gzip.open}
_SAMPLE = 64 << 20  # bytes of text from which the tokenizer is trained


class Corpus:
    """Random documents; the same seed gives the same ones."""

    def __init__(self, seed: int = 0) -> None:
        self._lines = _library_lines()
        self._rng = np.random.default_rng(seed)

    def documents(self, num_bytes: int) -> Iterator[str]:
        """Yield documents until they have `num_bytes` characters (of ASCII) together."""
        size = 0
        while size < num_bytes:
            count = int(self._rng.geometric(1 / DOCUMENT_LINES))
            text = "".join(self._lines[self._rng.integers(0, len(self._lines), count)])
            size += len(text)
            yield text

    def write(self, directory: Path, num_bytes: int) -> list[Path]:
        """Write files with `num_bytes` of text in all, and return their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        count = -(-num_bytes // FILE_BYTES)
        paths = []
        for number in range(count):
            path = directory / f"{number:04}{FORMATS[number % len(FORMATS)]}"
            size = min(FILE_BYTES, num_bytes - number * FILE_BYTES)
            write = _write_parquet if path.suffix == ".parquet" else _write_lines
            write(path, self.documents(size))
            paths.append(path)
        return paths

    def train_tokenizer(self, path: Path, vocab_size: int) -> None:
        """Train a byte-level BPE tokenizer like GPT-2's on documents of its own, and write its file."""
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
        bpe.pre_tokenizer = cast(Any, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False))
        bpe.decoder = cast(Any, tokenizers.decoders.ByteLevel())
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        bpe.train_from_iterator(self.documents(_SAMPLE), trainer)
        bpe.save(str(path))


def _library_lines() -> np.ndarray:
    """Lines of the standard library's modules, ASCII only, as an array of strings (object)."""
    lines = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        lines += path.read_text("utf-8", errors="ignore").splitlines(keepends=True)
    return np.array([line for line in lines if line.isascii()], dtype=object)


def _write_lines(path: Path, documents: Iterator[str]) -> None:
    with _OPEN.get(path.suffix, open)(path, "wb") as file:
        for group in batched(documents):
            file.write("".join(json.dumps({"text": text}) + "\n" for text in group).encode())


def _write_parquet(path: Path, documents: Iterator[str]) -> None:
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in batched(documents):
            writer.write_table(pa.table({"text": group}, schema))


def batched(documents: Iterator[str]) -> Iterator[list[str]]:
    """Yield lists of 1,000 documents; the last one may be shorter."""
    while group := list(islice(documents, _GROUP)):
        yield group
