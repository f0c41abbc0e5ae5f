"""Write the shards of one split document by document; an unfinished shard can be truncated and continued.

The files of an unfinished shard end in ``.part``. NumPy's header of a one-dimensional array has space for any
length, so the header is rewritten when the shard is full.
"""

import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from based_jax.data.shards.manifest import Shard, shard_file

_PART = ".part"


class _ArrayFile:
    """A growing one-dimensional .npy file: a new one, or one truncated to `length` items with this CRC-32."""

    def __init__(self, name: Path, dtype: Any, length: int = 0, crc32: int = 0) -> None:
        self.length, self.crc32 = length, crc32
        self._name, self._dtype = name, np.dtype(dtype).newbyteorder("<")
        if length and name.exists():  # it was finished after the state was taken
            os.replace(name, f"{name}{_PART}")
        self._file = open(f"{name}{_PART}", "r+b" if length else "wb")  # noqa: SIM115  (until it is full)
        self._write_header(0)
        self._file.truncate(self._file.tell() + length * self._dtype.itemsize)
        self._file.seek(0, os.SEEK_END)

    def append(self, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array, self._dtype)
        if data.size:
            self._file.write(data.data)
            self.crc32, self.length = zlib.crc32(data.data, self.crc32), self.length + data.size

    def sync(self) -> tuple[int, int]:
        """Flush to disk; return the length and the CRC-32."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self.length, self.crc32

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header(self.length)
        self.sync()
        self.close()
        os.replace(f"{self._name}{_PART}", self._name)

    def close(self) -> None:
        self._file.close()

    def _write_header(self, length: int) -> None:
        description = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": description, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


class ShardWriter:
    """Writes the shards of `split` in `directory`, from the first one or from a `state` of `sync`."""

    def __init__(
        self,
        directory: Path,
        split: str,
        dtype: np.dtype,
        eot: int,
        shard_tokens: int,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._directory, self._split, self._shard_tokens = directory, split, shard_tokens
        self._dtype, self._eot = dtype, np.full(1, eot, dtype)
        self.shards = [Shard(**shard) for shard in state["shards"]] if state else []
        self._files: tuple[_ArrayFile, _ArrayFile] | None = None  # tokens and starts
        self._bytes = 0
        (directory / split).mkdir(exist_ok=True)
        if state and state["files"]:
            self._open(*state["files"])
            self._bytes = state["bytes"]
        kept = {directory / name for shard in self.shards for name in (shard.file, shard.starts_file)}
        kept |= {Path(f"{name}{_PART}") for name in self._names()} if self._files else set()
        for path in (directory / split).iterdir():
            if path not in kept:  # written after the state
                path.unlink()

    def append(
        self, stream: np.ndarray, lengths: Int64[np.ndarray, " n"], sizes: Int64[np.ndarray, " n"]
    ) -> None:
        """Append n documents: their tokens with leading EOTs, and the tokens and text bytes of each."""
        first = begin = 0
        ends = np.cumsum(lengths)
        while first < len(lengths):
            tokens, starts = self._files or self._open()
            capacity = self._shard_tokens - 1 - tokens.length  # 1 for the final EOT
            count = int(np.searchsorted(ends[first:] - begin, capacity, side="right"))
            if not count and starts.length:
                self.close()
                continue
            last = first + max(count, 1)  # a document longer than a shard gets its own shard
            end = int(ends[last - 1])
            starts.append(tokens.length + ends[first:last] - lengths[first:last] - begin)
            tokens.append(stream[begin:end])
            self._bytes += int(sizes[first:last].sum())
            first, begin = last, end

    def sync(self) -> dict[str, Any]:
        """Flush everything to disk; return a state of plain values to continue from."""
        files = [file.sync() for file in self._files or ()]
        return {"shards": [asdict(shard) for shard in self.shards], "files": files, "bytes": self._bytes}

    def close(self) -> None:
        """Finish the current shard, if there is one."""
        if self._files is None:
            return
        tokens, starts = self._files
        tokens.append(self._eot)
        for file in self._files:
            file.finish()
        name = shard_file(self._split, len(self.shards))
        sizes = starts.length, tokens.length, self._bytes
        self.shards.append(Shard(name, *sizes, tokens.crc32, starts.crc32))
        self._files, self._bytes = None, 0

    def abandon(self) -> None:
        """Close the files without finishing the shard."""
        for file in self._files or ():
            file.close()

    def _names(self) -> tuple[Path, Path]:
        tokens = self._directory / shard_file(self._split, len(self.shards))
        return tokens, tokens.with_name(tokens.name.replace(".tokens.", ".starts."))

    def _open(self, *states: tuple[int, int]) -> tuple[_ArrayFile, _ArrayFile]:
        """Open the files of the next shard, with the length and the CRC-32 of each."""
        (tokens, starts), (of_tokens, of_starts) = self._names(), states or ((0, 0), (0, 0))
        self._files = _ArrayFile(tokens, self._dtype, *of_tokens), _ArrayFile(starts, np.int64, *of_starts)
        return self._files
