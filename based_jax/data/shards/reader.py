"""Read token shards in place, where a command takes text: ``tokens:DIR``.

Opening a directory reads only the manifest and the files' headers.
"""

import functools
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from based_jax.data.documents import count, describe_counts
from based_jax.data.packed import PackedTokens, TokenStream
from based_jax.data.readers import ReadOptions
from based_jax.data.shards.manifest import Manifest, Split, token_dtype
from based_jax.data.tokenizers import Tokenizer, load_tokenizer, saved_bytes, text_start
from based_jax.validate import expect

_AGAIN = "the file is damaged: copy the directory again, or tokenize the sources again"


@dataclass(frozen=True, eq=False)
class TokenShards(TokenStream):
    """One split of a directory of token shards, a `based_jax.data.packed.TokenStream`.

    The arrays are memory-mapped, and a shard's checksums are verified when it is first read.
    """

    directory: Path
    manifest: Manifest
    split: Split
    _arrays: list[tuple[np.memmap, np.memmap]]  # tokens and starts of each shard
    _checked: set[int] = field(default_factory=set, repr=False)

    @classmethod
    def open(cls, directory: str | Path, side: Literal["train", "held_out"] = "train") -> "TokenShards":
        """Open a directory that ``based-jax train tokenize`` wrote.

        Raises:
            FileNotFoundError: no such directory, an unfinished one, or a missing shard.
            ValueError: an invalid manifest or one of another version, a tokenizer.json that does not match
                it, or a file of another dtype, shape or size.
        """
        folder = Path(directory)
        manifest = Manifest.read(folder)
        dtype, starts = token_dtype(manifest.tokenizer.vocab_size), np.dtype(np.int64)
        # Here rather than at first use: two threads that parse headers at once fail before Python 3.11.8
        # (github.com/python/cpython/issues/106905).
        arrays = [
            (
                _map(folder / shard.file, dtype, shard.tokens),
                _map(folder / shard.starts_file, starts, shard.documents),
            )
            for shard in manifest.splits[side].shards
        ]
        return cls(folder, manifest, manifest.splits[side], arrays)

    @property
    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of the documents' text."""
        return self.split.bytes

    @functools.cached_property
    def checksum(self) -> int:
        """Return a CRC-32 of the shards' checksums, without reading tokens."""
        sums = [(shard.crc32_tokens, shard.crc32_starts, shard.tokens) for shard in self.split.shards]
        return zlib.crc32(repr(sums).encode())

    @functools.cached_property
    def sizes(self) -> Int64[np.ndarray, " shards"]:
        return np.array([shard.tokens for shard in self.split.shards], np.int64)

    def shard(self, number: int) -> PackedTokens:
        """Return shard `number`, memory-mapped.

        Raises:
            ValueError: the file does not match the manifest, or cannot be read.
        """
        if number not in self._checked:
            self._check(number)
            self._checked.add(number)
        start = text_start(self.tokenizer)
        return PackedTokens(*self._arrays[number], self.split.shards[number].bytes, start)

    def head(self, tokens: int) -> PackedTokens:
        """Copy the first `tokens` tokens into memory as one stream; the last document may be cut.

        Raises:
            ValueError: there is no document.
        """
        expect(len(self) > 0, str(self.directory), "no document", "at least one on this side")
        chunks, starts, size, num_bytes = list[np.ndarray](), list[np.ndarray](), 0, 0
        for number in range(self.sizes.size):
            packed, last = self.shard(number), number == self.sizes.size - 1
            # The final EOT of a shard is the leading EOT of the next shard's first document.
            chunks.append(packed.tokens[: min(tokens - size, len(packed) - (not last))])
            starts.append(packed.starts[packed.starts < chunks[-1].size] + size)
            size, num_bytes = size + chunks[-1].size, num_bytes + packed.num_bytes
            if size >= tokens:
                break
        start = text_start(self.tokenizer)
        return PackedTokens(np.concatenate(chunks), np.concatenate(starts), num_bytes, start)

    def _check(self, number: int) -> None:
        """Compare a shard's files with the checksums in the manifest."""
        shard = self.split.shards[number]
        sums = (shard.file, shard.crc32_tokens), (shard.starts_file, shard.crc32_starts)
        for array, (file, expected) in zip(self._arrays[number], sums, strict=True):
            found, name = zlib.crc32(array.data), str(self.directory / file)
            expect(found == expected, name, f"CRC-32 {found:08x}", f"{expected:08x}; {_AGAIN}")

    def describe(self) -> dict[str, str]:
        """Describe the shards of this split, and what was skipped when they were written."""
        split = self.split
        shards, documents = count(len(split.shards), "shard"), count(split.documents, "document")
        size, name = f"{split.bytes:,} bytes", self.manifest.tokenizer.name
        rows = {"data": f"{TOKENS}{self.directory}: {shards}, {documents}, {size}, tokenizer {name}"}
        skipped = describe_counts(self.manifest.skipped)
        return rows | ({"skipped": skipped} if skipped else {})

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer of the ids.

        Raises:
            ValueError: tokenizer.json does not match the manifest.
        """
        path, record = self.directory / "tokenizer.json", self.manifest.tokenizer
        expect(path.is_file(), "data", str(path), "a file: the tokenizer of the shards")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        expect(found == record.sha256, str(path), f"SHA-256 {found}", f"{record.sha256}; {_AGAIN}")
        return load_tokenizer(self.directory)


def _map(path: Path, dtype: np.dtype, size: int) -> np.memmap:
    """Map an .npy file, of which only the header is read, and check its dtype and size."""
    expected = f"an .npy file of {dtype}, shape ({size},)"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected {expected}, but there is none; {_AGAIN}")
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{path}: expected {expected} ({error}); {_AGAIN}") from error
    is_array = (array.shape, array.dtype) == ((size,), dtype)
    expect(is_array, str(path), f"{array.dtype}, shape {array.shape}", f"{expected}; {_AGAIN}")
    return array


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


_TEXT_FLAGS = ("include", "held_out", "held_out_bytes", "held_out_names")


def expect_no_text_flags(options: Any) -> None:
    """Check that flags that only affect reading text have their defaults; `options.data` names shards."""
    given = {name: getattr(options, name) for name in _TEXT_FLAGS} | vars(options.reading)
    usual = {name: getattr(type(options), name) for name in _TEXT_FLAGS} | vars(ReadOptions())
    expected = f"no such flag with --data {options.data}: it only affects reading text"
    for flag, value in given.items():
        expect(value == usual[flag], flag, value, expected)


def expect_same_tokenizer(shards: TokenShards, tokenizer: Tokenizer) -> None:
    """Check that the ids of shards are those of a model's tokenizer; a ValueError names both."""
    own, record = shards.tokenizer, shards.manifest.tokenizer
    # Save both with the same version of the library: versions may write files differently.
    if own is not tokenizer and saved_bytes(own) != saved_bytes(tokenizer):
        expected = (
            f"that of the shards in {shards.directory}: {record.name!r} with {record.vocab_size} tokens"
        )
        given = f"{tokenizer.name!r} with {tokenizer.vocab_size} tokens"
        raise ValueError(f"tokenizer = {given}: expected {expected}")
