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

from based_jax.data.packed import PackedTokens
from based_jax.data.shards.manifest import Manifest, Shard, Split
from based_jax.data.shards.sharded import Sharded
from based_jax.data.tokenizers import Tokenizer, load_tokenizer
from based_jax.validate import expect

_CHUNK = 4 << 20  # bytes that a check reads at once
_AGAIN = "the file is damaged: copy the directory again, or tokenize the sources again"


@dataclass(frozen=True, eq=False)
class TokenShards(Sharded):
    """One split of a directory of token shards, a `based_jax.data.streams.TokenStream`.

    The arrays are memory-mapped, and a shard's checksums are verified when it is first read.
    """

    directory: Path
    manifest: Manifest
    split: Split
    _checked: set[int] = field(default_factory=set, repr=False)

    @classmethod
    def open(cls, directory: str | Path, side: Literal["train", "held_out"] = "train") -> "TokenShards":
        """Open a directory that ``python -m train.tokenize`` wrote.

        Raises:
            FileNotFoundError: no such directory, an unfinished one, or a missing shard.
            ValueError: an invalid manifest or one of another version, a tokenizer.json that does not match
                it, or a file of another dtype, shape or size.
        """
        folder = Path(directory)
        manifest = Manifest.read(folder)
        shards = cls(folder, manifest, manifest.splits[side])
        for shard in shards.split.shards:
            _expect_header(folder / shard.file, np.dtype(manifest.dtype), shard.tokens)
            _expect_header(folder / shard.starts_file, np.dtype(np.int64), shard.documents)
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
        return functools.lru_cache(maxsize=2)(self._map)

    def _map(self, number: int) -> PackedTokens:
        shard = self.split.shards[number]
        if number not in self._checked:
            self._check(shard)
            self._checked.add(number)
        tokens, starts = (
            np.load(self.directory / file, mmap_mode="r", allow_pickle=False)
            for file in (shard.file, shard.starts_file)
        )
        return PackedTokens(tokens, starts, shard.bytes)

    def _check(self, shard: Shard) -> None:
        """Read a shard's files once and compare them with the manifest, with maps of their own."""
        (tokens, tokens_crc32, highest), (starts, starts_crc32, _) = (
            _scan(self.directory / file) for file in (shard.file, shard.starts_file)
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


def _expect_header(path: Path, dtype: np.dtype, size: int) -> None:
    """Check that a file is an .npy array of that dtype and size, by its header and its length."""
    expected = f"an .npy file of version 1.0, {dtype}, shape ({size},)"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected {expected}, but there is none; {_AGAIN}")
    with path.open("rb") as file:
        try:
            shape, _, found = _read_header(file)
        except ValueError as error:
            raise ValueError(f"{path}: expected {expected} ({error}); {_AGAIN}") from error
        begin, end = file.tell(), path.stat().st_size
    is_array = (shape, found) == ((size,), dtype)
    expect(is_array, str(path), f"{found}, shape {shape}", f"{expected}; {_AGAIN}")
    length = begin + size * dtype.itemsize
    expect(end == length, str(path), f"{end} bytes", f"{length}; {_AGAIN}")


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version}")
    return np.lib.format.read_array_header_1_0(file)


def _scan(path: Path) -> tuple[np.ndarray, int, int]:
    """Read an .npy file; return its array, memory-mapped, its CRC-32 and its largest element."""
    with path.open("rb") as file:
        _, _, dtype = _read_header(file)
        value, highest = 0, 0
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
            highest = max(highest, int(np.frombuffer(chunk, dtype).max()))
    return np.load(path, mmap_mode="r", allow_pickle=False), value, highest
