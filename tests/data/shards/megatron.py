"""Megatron's pairs of files, written with NumPy alone."""

import struct
from pathlib import Path

import numpy as np


def write_megatron(path: Path, documents: list[list[int]], dtype: str = "<u2") -> Path:
    """Write NAME.idx and NAME.bin, one sequence for each document; returns the first."""
    code = {"<u2": 8, "<i4": 4}[dtype]
    sizes = np.array([len(ids) for ids in documents], "<i4")
    pointers = (np.cumsum(sizes) - sizes).astype("<i8") * np.dtype(dtype).itemsize
    borders = np.arange(len(sizes) + 1, dtype="<i8")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sizes), len(borders))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + sizes.tobytes() + pointers.tobytes() + borders.tobytes())
    path.with_suffix(".bin").write_bytes(np.concatenate(documents).astype(dtype).tobytes())
    return path
