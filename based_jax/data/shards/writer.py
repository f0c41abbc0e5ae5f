"""Write the shards of one split document by document; an unfinished shard can be truncated and continued.

The files of an unfinished shard end in ``.part``. NumPy's header of a one-dimensional array has space for any
length, so the header is rewritten when the shard is full.
"""

import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from jaxtyping import Int64

from based_jax.data.shards.manifest import Shard, shard_file

_PART = ".part"


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
        self._eot = np.full(1, eot, dtype)
        self.shards = [Shard(**shard) for shard in state["shards"]] if state else []
        self._files: tuple[BinaryIO, BinaryIO] | None = None
        self._clear()
        if state and state["documents"]:
            self._documents, self._tokens, self._bytes = state["documents"], state["tokens"], state["bytes"]
            self._crcs = list(state["crcs"])
        (directory / split).mkdir(exist_ok=True)
        self._cut_back()

    def append(
        self, stream: np.ndarray, lengths: Int64[np.ndarray, " n"], sizes: Int64[np.ndarray, " n"]
    ) -> None:
        """Append n documents: their tokens with leading EOTs, and the tokens and text bytes of each."""
        first = begin = 0
        ends = np.cumsum(lengths)
        while first < len(lengths):
            capacity = self._shard_tokens - 1 - self._tokens  # 1 for the final EOT
            count = int(np.searchsorted(ends[first:] - begin, capacity, side="right"))
            if not count and self._documents:
                self.close()
                continue
            last = first + max(count, 1)  # a document longer than a shard gets its own shard
            end = int(ends[last - 1])
            starts = self._tokens + ends[first:last] - lengths[first:last] - begin
            self._write(stream[begin:end], starts.astype("<i8"))
            self._documents += last - first
            self._bytes += int(sizes[first:last].sum())
            first, begin = last, end

    def sync(self) -> dict[str, Any]:
        """Flush everything to disk; return a state of plain values to continue from."""
        for file in self._files or ():
            file.flush()
            os.fsync(file.fileno())
        counts = {"documents": self._documents, "tokens": self._tokens, "bytes": self._bytes}
        return {"shards": [asdict(shard) for shard in self.shards], "crcs": self._crcs, **counts}

    def close(self) -> None:
        """Finish the current shard, if there is one."""
        if not self._documents or self._files is None:
            return
        self._write(self._eot, np.zeros(0, "<i8"))
        lengths = (self._tokens, self._documents)
        for file, dtype, length, name in zip(
            self._files, self._dtypes(), lengths, self._names(), strict=True
        ):
            file.seek(0)
            _write_header(file, dtype, length)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(f"{name}{_PART}", name)
        file = shard_file(self._split, len(self.shards))
        self.shards.append(Shard(file, self._documents, self._tokens, self._bytes, *self._crcs))
        self._files = None
        self._clear()

    def abandon(self) -> None:
        """Close the files without finishing the shard."""
        for file in self._files or ():
            file.close()

    def _clear(self) -> None:
        self._documents = self._tokens = self._bytes = 0
        self._crcs = [0, 0]

    def _dtypes(self) -> tuple[np.dtype, np.dtype]:
        return self._eot.dtype.newbyteorder("<"), np.dtype("<i8")

    def _names(self) -> tuple[Path, Path]:
        tokens = self._directory / shard_file(self._split, len(self.shards))
        return tokens, tokens.with_name(tokens.name.replace(".tokens.", ".starts."))

    def _write(self, *arrays: np.ndarray) -> None:
        if self._files is None:
            self._files = _open(self._names(), "wb")
            for file, dtype in zip(self._files, self._dtypes(), strict=True):
                _write_header(file, dtype, 0)
        for i, (file, array) in enumerate(zip(self._files, arrays, strict=True)):
            if array.size:
                file.write(np.ascontiguousarray(array).data)
                self._crcs[i] = zlib.crc32(np.ascontiguousarray(array).data, self._crcs[i])
        self._tokens += arrays[0].size

    def _cut_back(self) -> None:
        """Restore the split's files to this state: truncate the current shard, delete later ones."""
        under_way = self._names() if self._documents else None
        finished = {
            self._directory / name for shard in self.shards for name in (shard.file, shard.starts_file)
        }
        for name in under_way or ():
            if name.exists():  # it was finished after the state was taken
                os.replace(name, f"{name}{_PART}")
        kept = {Path(f"{name}{_PART}") for name in under_way or ()}
        for path in (self._directory / self._split).iterdir():
            if path not in finished | kept:
                path.unlink()
        if under_way:
            self._files = _open(under_way, "r+b")
            lengths = (self._tokens, self._documents)
            for file, dtype, length in zip(self._files, self._dtypes(), lengths, strict=True):
                _write_header(file, dtype, 0)
                file.truncate(file.tell() + length * dtype.itemsize)
                file.seek(0, os.SEEK_END)


def _open(names: tuple[Path, Path], mode: str) -> tuple[BinaryIO, BinaryIO]:
    """Open the files of an unfinished shard."""
    tokens = open(f"{names[0]}{_PART}", mode)  # noqa: SIM115  (open until the shard is full)
    starts = open(f"{names[1]}{_PART}", mode)  # noqa: SIM115
    return cast(BinaryIO, tokens), cast(BinaryIO, starts)


def _write_header(file: BinaryIO, dtype: np.dtype, length: int) -> None:
    description = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": description, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
