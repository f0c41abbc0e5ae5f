"""Read Megatron's and GPT-NeoX's token files: NAME.bin, the concatenated ids, and NAME.idx, its index.

    NAME.idx    magic "MMIDIDX\\0\\0", version u64 = 1, dtype u8, number of sequences S u64, of borders D u64,
                sizes int32 (S,), in tokens; pointers int64 (S,), in bytes of NAME.bin;
                borders int64 (D,): document i is the sequences borders[i] ... borders[i + 1] - 1

All values are little-endian (NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py). The Based
authors' copy of the Pile is in this format. The Pile's index has 2.5 GB, so it is read in blocks.
"""

import itertools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from based_jax.validate import expect

INDEX = ".idx"
TOKENS = ".bin"

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""code -> integer dtype; 6 and 7 are floating-point types, in an order that differs between the projects"""
_BLOCK = 1 << 16  # number of documents whose borders are read at once
MAX_DOCUMENT = 1 << 30  # tokens


@dataclass(frozen=True)
class TokenFile:
    """A pair of files whose header matches their sizes; `documents` is the number of documents."""

    index: Path
    dtype: np.dtype
    sequences: int
    documents: int

    @classmethod
    def open(cls, index: Path) -> "TokenFile":
        """Read the header of NAME.idx.

        Raises:
            OSError: a file that cannot be read, or no NAME.bin.
            ValueError: another format or version, a dtype of the ids that is not integer, or counts that do
                not match the file's size.
        """
        with index.open("rb") as file:
            header, size = file.read(_HEADER.size), os.fstat(file.fileno()).st_size
        name = str(index)
        expect(header[:9] == _MAGIC, f"{name}, its first bytes", header[:9], f"{_MAGIC!r}, Megatron's index")
        expect(len(header) == _HEADER.size, f"{name}, its size", size, f"at least {_HEADER.size} bytes")
        _, version, code, sequences, borders = _HEADER.unpack(header)
        expect(version == 1, f"{name}, version", version, "1")
        expect(code in _DTYPES, f"{name}, dtype", code, f"the code of an integer, one of {[*_DTYPES]}")
        # Multimodal data have one more byte per sequence at the end.
        least = _HEADER.size + 12 * sequences + 8 * borders
        sizes = f"{least} bytes, as {sequences} sequences and {borders} borders take"
        expect(size in (least, least + sequences), f"{name}, its size", size, sizes)
        expect(borders >= 1, f"{name}, borders", borders, "at least 1, the end of the last document")
        index.with_suffix(TOKENS).stat()
        return cls(index, np.dtype(_DTYPES[code]), sequences, borders - 1)

    def read(self, first: int = 0) -> Iterator[np.ndarray]:
        """Yield the ids of the documents from number `first` on, as stored; documents may be empty.

        Raises:
            OSError: a file cannot be read.
            ValueError: borders out of order, sequences outside NAME.bin, or a document of more than
                `MAX_DOCUMENT` tokens; the message names the document.
        """
        with self.index.open("rb") as index, self.index.with_suffix(TOKENS).open("rb") as tokens:
            total = os.fstat(tokens.fileno()).st_size
            for start in range(first, self.documents, _BLOCK):
                count = min(_BLOCK, self.documents - start) + 1
                borders = _array(index, "<i8", _HEADER.size + 12 * self.sequences + 8 * start, count)
                ordered = bool((np.diff(borders) >= 0).all()) and 0 <= borders[0] <= borders[-1]
                inside = ordered and borders[-1] <= self.sequences
                expect(inside, f"{self.index}, borders from document {start}", borders, "increasing numbers")
                for number, (begin, end) in enumerate(itertools.pairwise(borders), start=start):
                    yield self._document(index, tokens, total, number, int(begin), int(end))

    def _document(
        self, index: BinaryIO, tokens: BinaryIO, total: int, number: int, begin: int, end: int
    ) -> np.ndarray:
        name, width, parts = f"{self.index}, document {number}", self.dtype.itemsize, list[np.ndarray]()
        for start in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - start)
            sizes = _array(index, "<i4", _HEADER.size + 4 * start, count).astype(np.int64)
            pointers = _array(index, "<i8", _HEADER.size + 4 * self.sequences + 8 * start, count)
            expect(bool((sizes >= 0).all()), f"{name}, sizes", sizes, "not negative")
            length = int(sizes.sum()) + sum(part.size for part in parts)
            expect(length <= MAX_DOCUMENT, f"{name}, tokens", length, f"at most {MAX_DOCUMENT}")
            ends = pointers + sizes * width
            inside = bool(((pointers >= 0) & (ends >= pointers) & (ends <= total)).all())
            expect(inside, f"{name}, pointers", pointers, f"within the {total} bytes of its {TOKENS} file")
            for pointer, size in zip(pointers, sizes, strict=True):
                parts.append(_array(tokens, self.dtype, int(pointer), int(size)))
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)


def _array(file: BinaryIO, dtype: np.dtype | str, offset: int, count: int) -> np.ndarray:
    """Read `count` numbers from a file; OSError if it is too short."""
    file.seek(offset)
    size = count * np.dtype(dtype).itemsize
    content = file.read(size)
    if len(content) < size:
        raise OSError(
            f"{file.name}: {len(content)} bytes at {offset}, expected {size}: it has become shorter"
        )
    return np.frombuffer(content, dtype=dtype)


def split_at(ids: np.ndarray, separator: int) -> list[np.ndarray]:
    """Return the documents between the separators of one document of a file, none of them empty.

    Most have one separator, at the end; files of packed sequences have several.
    """
    parts = np.split(ids, np.flatnonzero(ids == separator))  # all but the first begin with a separator
    found = [part[1:] if part.size and part[0] == separator else part for part in parts]
    return [part for part in found if part.size]
