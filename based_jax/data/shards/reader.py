"""Read token shards in place; opening a directory reads only the manifest and the files' headers."""

import functools
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from jaxtyping import Int64

from based_jax.data.packed import PackedTokens, TokenStream
from based_jax.data.shards.manifest import Manifest, Shard, Split
from based_jax.data.tokenizers import Tokenizer, load_tokenizer
from based_jax.validate import expect

_CHUNK = 4 << 20  # bytes that a check reads at once
_AGAIN = "the file is damaged: copy the directory again, or tokenize the sources again"


@dataclass(frozen=True, eq=False)
class TokenShards(TokenStream):
    """One split of a directory of token shards, a `based_jax.data.packed.TokenStream`.

    The arrays are memory-mapped, and a shard's checksums are verified when it is first read.
    """

    directory: Path
    manifest: Manifest
    split: Split
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
        shards = cls(folder, manifest, manifest.splits[side])
        for shard in shards.split.shards:
            for file in shards._files(shard):
                file.expect_header()
        return shards

    @property
    def name(self) -> str:
        return str(self.directory)

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
        return self._open_shard(number)

    @functools.cached_property
    def _open_shard(self) -> Callable[[int], PackedTokens]:
        return functools.cache(self._map)

    def _map(self, number: int) -> PackedTokens:
        shard = self.split.shards[number]
        if number not in self._checked:
            self._check(shard)
            self._checked.add(number)
        tokens, starts = (file.map() for file in self._files(shard))
        return PackedTokens(tokens, starts, shard.bytes)

    def _files(self, shard: Shard) -> "tuple[_ArrayFile, _ArrayFile]":
        """Return the files of a shard's tokens and of its documents' starts."""
        return (
            _ArrayFile(self.directory / shard.file, np.dtype(self.manifest.dtype), shard.tokens),
            _ArrayFile(self.directory / shard.starts_file, np.dtype(np.int64), shard.documents),
        )

    def _check(self, shard: Shard) -> None:
        """Read a shard's files once and compare them with the manifest, with maps of their own."""
        (tokens, tokens_crc32, highest), (starts, starts_crc32, _) = (
            file.scan() for file in self._files(shard)
        )
        path, record = self.directory / shard.file, self.manifest.tokenizer
        pairs = (tokens_crc32, shard.crc32_tokens), (starts_crc32, shard.crc32_starts)
        for file, (found, expected) in zip((shard.file, shard.starts_file), pairs, strict=True):
            name = str(self.directory / file)
            expect(found == expected, name, f"CRC-32 {found:08x}", f"{expected:08x}; {_AGAIN}")
        size = record.vocab_size
        expect(highest < size, str(path), f"token {highest}", f"ids below {size}, the vocabulary")
        last = shard.tokens - 1
        increasing = starts[0] == 0 and bool((np.diff(starts, append=last) > 0).all())
        expect(increasing, str(path), "starts that do not increase from 0", "those of a token shard")
        separated = tokens[last] == record.eot and bool((tokens[starts] == record.eot).all())
        expect(separated, str(path), "documents without EOT", f"token {record.eot} before and after each one")

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


@dataclass(frozen=True)
class _ArrayFile:
    """An .npy file of one dimension.

    Only `expect_header` parses the header. NumPy parses it as Python, and two threads that do so at once fail
    before Python 3.11.8 (github.com/python/cpython/issues/106905); the rest runs in any thread.
    """

    path: Path
    dtype: np.dtype
    size: int

    def expect_header(self) -> None:
        """Check that the file is an array of that dtype and size, by its header and its length."""
        path, expected = self.path, f"an .npy file of version 1.0, {self.dtype}, shape ({self.size},)"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: expected {expected}, but there is none; {_AGAIN}")
        with path.open("rb") as file:
            try:
                shape, _, found = _read_header(file)
            except ValueError as error:
                raise ValueError(f"{path}: expected {expected} ({error}); {_AGAIN}") from error
            length, end = file.tell() + self.size * self.dtype.itemsize, path.stat().st_size
        is_array = (shape, found) == ((self.size,), self.dtype)
        expect(is_array, str(path), f"{found}, shape {shape}", f"{expected}; {_AGAIN}")
        expect(end == length, str(path), f"{end} bytes", f"{length}; {_AGAIN}")

    def map(self) -> np.ndarray:
        """Map the array, which ends the file."""
        return np.memmap(self.path, self.dtype, "r", self._begin, (self.size,))

    def scan(self) -> tuple[np.ndarray, int, int]:
        """Read the file once; return its array, memory-mapped, its CRC-32 and its largest element."""
        value, highest = 0, 0
        with self.path.open("rb") as file:
            file.seek(self._begin)
            while chunk := file.read(_CHUNK):
                value = zlib.crc32(chunk, value)
                highest = max(highest, int(np.frombuffer(chunk, self.dtype).max()))
        return self.map(), value, highest

    @property
    def _begin(self) -> int:
        return self.path.stat().st_size - self.size * self.dtype.itemsize


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version}")
    return np.lib.format.read_array_header_1_0(file)
