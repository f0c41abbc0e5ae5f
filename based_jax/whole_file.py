"""Files that appear whole or not at all, and arrays as the bytes in them."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file for binary writing that takes the place of `path` unless the block raises."""
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        unfinished = Path(scratch) / target.name
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)


def raw_bytes(array: Any) -> memoryview:
    """The numbers of an array (NumPy or JAX, any strides) as files keep them: row by row, little-endian."""
    found = np.asarray(array)
    found = found.astype(found.dtype.newbyteorder("<"), order="C", copy=False)
    return found.reshape(-1).view(np.uint8).data
