"""safetensors files with mutated headers, dtypes, offsets, names and bytes."""

import functools
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from based_jax.convert.state_dict import read_state_dict
from tests.hostile.attack import Attack

_DTYPES = [
    "F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3", "I64", "U64", "I8", "BOOL", "C64", "X", "", None, 3,
]  # fmt: skip
_NUMBERS = [0, 1, -1, 2, 4, 1 << 31, 1 << 62, 1 << 64, 10**30, 1.5, True, None, "4", [], {}]
_NAMES = ["w", "", "__metadata__", "a\x1b[31m\n", "model.w", "v", "\ud800", "é" * 300, "../w"]


def attacks(rng: np.random.Generator, count: int) -> Iterator[Attack]:
    """Yield `count` attacks: two thirds on the header's content, the others on bytes and sizes."""
    for number in range(count):
        seeds = np.random.default_rng(rng.integers(1 << 32))
        content, length = (_content, _content, _bytes)[number % 3](seeds)
        yield Attack(f"{content[:90]!r}, {length} bytes", functools.partial(_load, content, length))


def _load(content: bytes, length: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "model.safetensors"
        file.write_bytes(content)
        os.truncate(file, length)
        try:
            arrays = read_state_dict(file)
        except ValueError as error:
            message = str(error)
            assert message.startswith(f"{file}: "), message
            assert message.isprintable(), ascii(message)
            assert len(message) < 4000
            raise
        for name, array in arrays.items():
            assert array.dtype.kind in "fV", f"{name} has dtype {array.dtype}"
            assert np.isfinite(array.astype(np.float32)).all(), name
            assert array.nbytes <= length


def _entry(rng: np.random.Generator) -> Any:
    start = int(rng.integers(0, 3)) * 4
    entry: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [start, start + 8]}
    for _ in range(rng.integers(0, 3)):
        match int(rng.integers(5)):
            case 0:
                entry["dtype"] = _DTYPES[int(rng.integers(len(_DTYPES)))]
            case 1:
                entry["shape"] = _some(rng)
            case 2:
                entry["data_offsets"] = _some(rng)
            case 3:
                entry.pop(list(entry)[int(rng.integers(len(entry)))], None)
            case _:
                entry["more"] = _some(rng)
        if not entry:
            break
    return entry if rng.random() < 0.9 else _some(rng)


def _some(rng: np.random.Generator) -> list[Any]:
    return [_NUMBERS[int(i)] for i in rng.integers(len(_NUMBERS), size=rng.integers(0, 5))]


def _content(rng: np.random.Generator) -> tuple[bytes, int]:
    pairs = [(_NAMES[int(i)], _entry(rng)) for i in rng.integers(len(_NAMES), size=rng.integers(1, 4))]
    if rng.random() < 0.2:  # one name twice, perhaps in two spellings
        pairs.append(pairs[0])
    texts = [f"{json.dumps(name)}:{json.dumps(entry)}" for name, entry in pairs]
    if rng.random() < 0.1:
        texts.append('"d":' + "[" * 3000 + "]" * 3000)
    header = ("{" + ",".join(texts) + "}").encode()
    values = rng.choice([0.0, 1.0, 1e300, np.nan, -np.inf], size=4)
    data = values.tobytes()[: int(rng.integers(33))]
    size = len(header) if rng.random() < 0.9 else int(rng.choice([0, 1, 1 << 20, 1 << 40, 1 << 63]))
    content = struct.pack("<Q", size) + header + data
    return content, len(content)


def _bytes(rng: np.random.Generator) -> tuple[bytes, int]:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    content = bytearray(struct.pack("<Q", len(header)) + header + bytes(8))
    for _ in range(rng.integers(0, 4)):
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
    cut = int(rng.choice([len(content), len(content) - 1, 3, 0, 1 << 20, 1 << 40]))
    return bytes(content), cut
