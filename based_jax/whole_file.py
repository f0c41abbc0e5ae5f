"""Write files atomically, and convert arrays to the bytes of files."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new binary file that replaces `path` at the end unless the block raises."""
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        unfinished = Path(scratch) / target.name
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON in lines that a person can read, replacing `path` at the end."""
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def raw_bytes(array: Any) -> memoryview:
    """Return an array's numbers (NumPy or JAX, any strides) as little-endian bytes, row by row."""
    found = np.asarray(array)
    found = found.astype(found.dtype.newbyteorder("<"), order="C", copy=False)
    return found.reshape(-1).view(np.uint8).data
