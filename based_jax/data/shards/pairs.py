"""Read Megatron's and GPT-NeoX's token files in place, as shards.

    DIR/NAME.idx with DIR/NAME.bin, any number of pairs      the training split; no held-out split
    DIR/train/NAME.idx, ..., DIR/held_out/NAME.idx, ...      both splits

A file is a stream d1 EOT d2 EOT ... dn EOT. It is cut at separators into shards of about `SHARD` tokens, each
of which begins with the separator before it: a `PackedTokens` without a copy. The first document of each file
is not used, since no separator precedes it. Documents are the text between separators; the index only gives
the borders of the shards.

These files have no checksums and no byte counts: there are no bits per byte, and `checksum` covers samples.
A shard's ids are checked against the vocabulary when it is first read.
"""

import bisect
import functools
import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int64

from based_jax.data.packed import PackedTokens, TokenStream
from based_jax.data.shards.megatron import INDEX, TOKENS, TokenFile
from based_jax.data.tokenizers import Tokenizer
from based_jax.validate import expect

SHARD = 64 << 20  # tokens

Side: TypeAlias = Literal["train", "held_out"]

_SAMPLE = 1 << 11  # tokens of each shard in the checksum
_CHUNK = 1 << 21  # tokens searched for separators at once
_OTHERWISE = "based-jax train tokenize --data {} makes token shards of other files"


class _Cut(NamedTuple):
    """Position of a shard in a token file."""

    file: TokenFile
    begin: int  # token of its leading separator
    end: int


@dataclass(frozen=True, eq=False)
class TokenPairs(TokenStream):
    """One split of a directory of pairs; reading tokens needs a tokenizer."""

    path: Path
    cuts: tuple[_Cut, ...]
    tokenizer: Tokenizer | None

    @classmethod
    def open(
        cls, path: Path, side: Literal["train", "held_out"], tokenizer: Tokenizer | None
    ) -> "TokenPairs":
        """Open the pairs that `find_pairs` finds; read their headers and the borders of shards.

        Raises:
            OSError: a file that cannot be read.
            ValueError: a damaged index, documents of several sequences, or a single document.
        """
        files = [TokenFile.open(index) for index in find_pairs(path, side)]
        return cls(path, tuple(cut for file in files for cut in _cut(file)), tokenizer)

    num_bytes = 0
    """Unknown."""

    @property
    def name(self) -> str:
        return str(self.path)

    @functools.cached_property
    def sizes(self) -> Int64[np.ndarray, " shards"]:
        return np.array([cut.end - cut.begin for cut in self.cuts], np.int64)

    @functools.cached_property
    def checksum(self) -> int:
        """Return a CRC-32 of the shards' borders and first tokens."""
        value = zlib.crc32(repr([(cut.file.dtype.str, cut.begin, cut.end) for cut in self.cuts]).encode())
        for cut in self.cuts:
            value = zlib.crc32(_map(cut)[:_SAMPLE].tobytes(), value)
        return value

    def shard(self, number: int) -> PackedTokens:
        """Return shard `number`, memory-mapped; it is read once to find the documents' starts.

        Raises:
            ValueError: ids beyond the vocabulary, or no separator where a document ends.
        """
        return self._open_shard(number)

    @functools.cached_property
    def _open_shard(self) -> Callable[[int], PackedTokens]:
        return functools.lru_cache(maxsize=2)(self._read_shard)

    def _read_shard(self, number: int) -> PackedTokens:
        cut, tokenizer = self.cuts[number], self.tokenizer
        assert tokenizer is not None, "only a dry run has none"
        name, tokens, starts = str(cut.file.index.with_suffix(TOKENS)), _map(cut), list[np.ndarray]()
        for begin in range(0, tokens.size, _CHUNK):
            chunk = tokens[begin : begin + _CHUNK]
            low, high = int(chunk.min()), int(chunk.max())
            inside = low >= 0 and high < tokenizer.vocab_size
            vocabulary = f"from 0 to {tokenizer.vocab_size - 1}, the ids of the tokenizer {tokenizer.name}"
            expect(inside, f"{name}, token ids", (low, high), vocabulary)
            starts.append(np.flatnonzero(chunk == tokenizer.eot) + begin)
        separated = tokens[0] == tokens[-1] == tokenizer.eot
        ends = int(tokens[0]), int(tokens[-1])
        expected = f"{tokenizer.eot}, the separator of the tokenizer {tokenizer.name}, after every document; "
        expect(separated, f"{name}, last ids of documents", ends, expected + _otherwise(cut.file))
        return PackedTokens(tokens, np.concatenate(starts)[:-1], 0)


def find_pairs(path: Path, side: Side = "train") -> list[Path]:
    """Return the sorted index files of one split's pairs; empty if `path` neither is nor contains a pair."""
    if path.suffix in (INDEX, TOKENS):
        return [path.with_suffix(INDEX)] if side == "train" and _is_pair(path.with_suffix(INDEX)) else []
    if (path / "manifest.json").exists():
        return []
    if has_sides := _indexes(path / "train"):
        return has_sides if side == "train" else _indexes(path / side)
    return _indexes(path) if side == "train" else []


def _indexes(directory: Path) -> list[Path]:
    return sorted(filter(_is_pair, directory.glob(f"*{INDEX}")))


def _is_pair(index: Path) -> bool:
    return index.is_file() and index.with_suffix(TOKENS).is_file()


def _cut(file: TokenFile) -> list[_Cut]:
    """Return the shards of a file, reading only a binary search per border from the index."""
    name, width = str(file.index), file.dtype.itemsize
    expected = f"{file.documents}, one for each document; {_otherwise(file)}"
    expect(file.sequences == file.documents, f"{name}, sequences", file.sequences, expected)
    expect(file.documents >= 2, f"{name}, documents", file.documents, f"at least 2; {_otherwise(file)}")
    pointers, total = file.pointers(), file.index.with_suffix(TOKENS).stat().st_size // width
    borders = [int(pointers[1]) // width]
    while borders[-1] < total:
        target = borders[-1] + SHARD
        document = bisect.bisect_left(pointers, target * width)
        border = int(pointers[document]) // width if document < file.documents else total
        inside = 0 < borders[-1] < border <= total
        expect(inside, f"{name}, pointers", (borders[-1], border), f"increasing ones, within {total} tokens")
        borders.append(border)
    return [_Cut(file, begin - 1, end) for begin, end in itertools.pairwise(borders)]


def _map(cut: _Cut) -> np.ndarray:
    path, offset = cut.file.index.with_suffix(TOKENS), cut.begin * cut.file.dtype.itemsize
    return np.memmap(path, cut.file.dtype, "r", offset, (cut.end - cut.begin,))


def _otherwise(file: TokenFile) -> str:
    return _OTHERWISE.format(file.index)
