"""Store how often each ordered pair of tokens occurs, in a sorted table in memory or mapped from a file.

A count file is a safetensors file with two tensors and text metadata:

    keys    uint64 (n,), strictly increasing: first token * 2^32 + second token
    counts  uint64 (n,), at least 1
    format "based_jax.bigrams", version "1", vocab_size, tokens (the sum of the counts), source

Tables can be added: merging the files of two streams gives the counts of both.
"""

import dataclasses
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer, UInt64

from based_jax.files import MAX_BYTES, parse_json
from based_jax.validate import expect
from based_jax.whole_file import raw_bytes, whole_file

FORMAT = "based_jax.bigrams"
VERSION = "1"

Entries = tuple[np.ndarray, np.ndarray]
"""Keys and their counts, both uint64 (n,)."""

_SHIFT = np.uint64(32)
_BLOCK = 1 << 16
"""Number of entries to read at once."""
_MERGE_BYTES = 80
"""Bytes per entry during a merge: two inputs, an order, two gathered, two outputs."""


@dataclasses.dataclass(frozen=True, eq=False)
class BigramTable:
    """Counts of bigrams.

    Attributes:
        keys: sorted, see the module.
        counts: of the keys.
        vocab_size: every token is below it.
        tokens: number of bigrams, the sum of `counts`.
        source: description of what was counted.
    """

    keys: UInt64[np.ndarray, " n"]
    counts: UInt64[np.ndarray, " n"]
    vocab_size: int
    tokens: int
    source: str = ""

    @classmethod
    def of_stream(cls, tokens: Integer[np.ndarray, " T"], vocab_size: int, source: str = "") -> "BigramTable":
        """Count the bigrams of a stream that fits in memory; see `BigramCounter` for larger ones."""
        keys, counts = count_keys(bigram_keys(tokens[:-1], tokens[1:]))
        return cls(keys, counts, vocab_size, max(len(tokens) - 1, 0), source)

    def __len__(self) -> int:
        """Return the number of distinct bigrams."""
        return self.keys.size

    def lookup(
        self, first: Integer[np.ndarray, "..."], second: Integer[np.ndarray, "..."]
    ) -> UInt64[np.ndarray, "..."]:
        """Return how often `second` occurs right after `first`, for arrays of equal shape."""
        # Look up each key once and in order: a mapped file is then read sequentially.
        wanted, positions = np.unique(bigram_keys(first, second), return_inverse=True)
        index = np.searchsorted(self.keys, wanted)
        inside = np.flatnonzero(index < len(self))
        found = np.zeros(wanted.shape, np.uint64)
        found[inside] = np.where(self.keys[index[inside]] == wanted[inside], self.counts[index[inside]], 0)
        return found[positions].reshape(np.shape(first))

    def blocks(self, size: int = _BLOCK) -> Iterator[Entries]:
        """Yield the entries in order, at most `size` at once."""
        for start in range(0, len(self), size):
            yield self.keys[start : start + size], self.counts[start : start + size]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a count file, whole or not at all."""
        write_table(path, self.blocks(), self.vocab_size, self.tokens, self.source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "BigramTable":
        """Open a count file; its arrays are mapped, so a table may be larger than the memory.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: not a count file, or a damaged one.
        """
        try:
            header, begin, size = _read_header(Path(path))
            notes = header["__metadata__"]
            expect(notes.get("format") == FORMAT, "format", notes.get("format"), repr(FORMAT))
            expect(notes.get("version") == VERSION, "version", notes.get("version"), repr(VERSION))
            arrays = [_map(Path(path), header[name], begin, size) for name in ("keys", "counts")]
            expect(arrays[0].size == arrays[1].size, "keys", arrays[0].size, f"{arrays[1].size}, as counts")
            table = cls(arrays[0], arrays[1], int(notes["vocab_size"]), int(notes["tokens"]), notes["source"])
            table._check()
        except (ValueError, KeyError, TypeError, struct.error) as error:
            wanted = f"expected a count file of bigrams ({error})"
            raise ValueError(f"counts = {os.fspath(path)!r}: {wanted}") from error
        return table

    def _check(self) -> None:
        """Check that the table is sorted, as lookups would otherwise be silently wrong, and its totals."""
        last, total = -1, 0
        for keys, counts in self.blocks():
            increasing = int(keys[0]) > last and bool(np.all(keys[1:] > keys[:-1]))
            expect(increasing, "keys", "unsorted", "increasing")
            last, total = int(keys[-1]), total + int(counts.sum())
        expect(total == self.tokens, "tokens", self.tokens, f"the sum of the counts, {total}")
        expect(last >> 32 < self.vocab_size, "vocab_size", self.vocab_size, f"more than {last >> 32}")


def bigram_keys(
    first: Integer[np.ndarray, "..."], second: Integer[np.ndarray, "..."]
) -> UInt64[np.ndarray, "..."]:
    """Combine each pair of tokens into one number."""
    return (np.asarray(first).astype(np.uint64) << _SHIFT) | np.asarray(second).astype(np.uint64)


def count_keys(keys: UInt64[np.ndarray, " n"]) -> Entries:
    """Return the distinct keys, sorted, and their counts."""
    distinct, counts = np.unique(keys, return_counts=True)
    return distinct, counts.astype(np.uint64)


def merge_entries(parts: Sequence[Entries]) -> Entries:
    """Merge the sorted entries of several tables, adding the counts of equal keys."""
    parts = [part for part in parts if part[0].size]
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    if len(parts) == 1:
        return parts[0]
    keys, counts = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")  # detects the sorted runs and merges them in linear time
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(counts, starts)


def merge_tables(
    tables: Sequence[BigramTable],
    path: str | os.PathLike[str],
    source: str | None = None,
    memory_bytes: int = 1 << 30,
) -> BigramTable:
    """Add tables up into a count file, in bounded memory, and open it.

    Args:
        tables: of one vocabulary; those from `BigramTable.load` stay on disk.
        path: file to create or replace.
        source: description of the sum; default: the tables' sources.
        memory_bytes: memory limit, not counting mapped files.

    Raises:
        ValueError: no tables, or tables of different vocabularies.
    """
    expect(bool(tables), "tables", [], "at least one")
    sizes = sorted({table.vocab_size for table in tables})
    expect(len(sizes) == 1, "vocab_size", sizes, "the same in all tables")
    if source is None:
        source = "; ".join(dict.fromkeys(table.source for table in tables))
    block = max(1, memory_bytes // (_MERGE_BYTES * len(tables)))
    total = sum(table.tokens for table in tables)
    write_table(path, _merge_blocks(tables, block), sizes[0], total, source)
    return BigramTable.load(path)


def _merge_blocks(tables: Sequence[BigramTable], block: int) -> Iterator[Entries]:
    """Yield the merged entries in order, reading at most `block` entries of each table at once.

    Unread entries of a table are above the last key of its block, so entries up to the smallest of these last
    keys are final.
    """
    positions = [0] * len(tables)
    while True:
        parts = [
            table.keys[position : position + block] for table, position in zip(tables, positions, strict=True)
        ]
        limits = [part[-1] for part in parts if part.size]
        if not limits:
            return
        limit = min(limits)
        merged = []
        for index, (table, part) in enumerate(zip(tables, parts, strict=True)):
            count = int(np.searchsorted(part, limit, side="right"))
            position = positions[index]
            merged.append((part[:count], table.counts[position : position + count]))
            positions[index] += count
        yield merge_entries(merged)


def write_table(
    path: str | os.PathLike[str], blocks: Iterable[Entries], vocab_size: int, tokens: int, source: str
) -> None:
    """Write a count file, whole or not at all, from sorted entries whose number is not known in advance."""
    reserved, size = len(_header(10**19, vocab_size, tokens, source)), 0
    with whole_file(path) as file, tempfile.TemporaryFile(dir=Path(path).parent) as rest:
        file.write(b"\0" * reserved)
        for keys, counts in blocks:
            file.write(raw_bytes(keys))
            rest.write(raw_bytes(counts))
            size += keys.size
        rest.seek(0)
        shutil.copyfileobj(rest, file, 1 << 18)
        file.seek(0)
        file.write(_header(size, vocab_size, tokens, source).ljust(reserved))
        file.seek(0)
        file.write(struct.pack("<Q", reserved - 8))  # the header includes the spaces after the JSON


def _header(size: int, vocab_size: int, tokens: int, source: str) -> bytes:
    notes = {"format": FORMAT, "version": VERSION, "vocab_size": str(vocab_size), "tokens": str(tokens)}
    bytes_ = 8 * size
    header = {
        "__metadata__": {**notes, "source": source},
        "keys": {"dtype": "U64", "shape": [size], "data_offsets": [0, bytes_]},
        "counts": {"dtype": "U64", "shape": [size], "data_offsets": [bytes_, 2 * bytes_]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # align the numbers to their size
    return struct.pack("<Q", len(text)) + text


def _read_header(path: Path) -> tuple[dict, int, int]:
    """Return the parsed header, the offset of the data, and the file's size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        expect(length < min(size, MAX_BYTES), "header", length, "shorter than the file and 8 MiB")
        header = parse_json(file.read(length), str(path), unique_keys=True)
    return header, 8 + length, size


def _map(path: Path, entry: dict, begin: int, size: int) -> np.ndarray:
    expect(entry["dtype"] == "U64", "dtype", entry["dtype"], "U64")
    start, end = entry["data_offsets"]
    (count,) = entry["shape"]
    fits = start >= 0 and end - start == 8 * count and begin + end <= size
    expect(fits, "file", size, f"{begin + end} bytes")
    if count == 0:
        return np.zeros(0, np.uint64)
    return np.memmap(path, "<u8", "r", begin + start, (count,))
