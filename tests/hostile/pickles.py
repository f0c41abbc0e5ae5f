"""torch archives with random, mutated and flooding pickle programs."""

import functools
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from based_jax.convert.torch_file.reader import load_torch_file
from tests.convert.torch_files import (
    FLOATS,
    ORDERED_DICT,
    REBUILD,
    Runs,
    call,
    named,
    program,
    save,
    storage,
    tensor,
)
from tests.hostile.attack import Attack

_ALIKE = (1 << 61) - 1
"""Python's integers hash modulo this."""

_OPCODES = [
    code for name, code in vars(pickle).items() if name.isupper() and type(code) is bytes and len(code) == 1
]
_PARTS = [tensor(), storage(), REBUILD, FLOATS, ORDERED_DICT, program("w"), program((2, 3)), program(_ALIKE)]


def attacks(rng: np.random.Generator, count: int) -> Iterator[Attack]:
    """Yield `count` attacks, a third of each kind."""
    kinds = (_random, _mutated, _flood)
    for number in range(count):
        what, make = kinds[number % len(kinds)](np.random.default_rng(rng.integers(1 << 32)))
        yield Attack(what, functools.partial(_load, make))


def _load(make: Callable[[Path], object]) -> None:
    """Load what `make` writes; nothing but that file may be there afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "weights.bin"
        make(file)
        try:
            arrays = load_torch_file(file)
        finally:
            left = [path.name for path in Path(directory).iterdir()]
            assert left == [file.name], f"left {left}"
        size = file.stat().st_size
        for name, array in arrays.items():
            assert type(name) is str
            assert type(array) is np.ndarray
            assert array.nbytes <= size, f"{array.nbytes} bytes of a file of {size}"


def _random(rng: np.random.Generator) -> tuple[str, Callable[[Path], object]]:
    parts = [
        (_OPCODES, _PARTS)[int(rng.integers(2))][int(rng.integers(8))] if rng.random() < 0.9 else rng.bytes(3)
        for _ in range(rng.integers(1, 30))
    ]
    code = b"".join(parts)
    content = {"w": tensor(), "x": code} if rng.random() < 0.5 else code
    return f"random program {code[:60].hex()}", lambda file: save(file, content)


def _mutated(rng: np.random.Generator) -> tuple[str, Callable[[Path], object]]:
    """A real file's pickle, or the bytes of the archive, with some of them changed, removed or repeated."""

    def make(file: Path) -> None:
        hooks = Runs(file.parent / "ran")
        evil = pickle.dumps(hooks, 2)[2:-1]
        save(
            file,
            {"w": tensor(), "v": evil if rng.random() < 0.3 else tensor((3, 2), (1, 3)), "n": {0: (1, "x")}},
        )
        whole = rng.random() < 0.3
        if whole:
            file.write_bytes(_spoil(file.read_bytes(), rng))
            return
        with zipfile.ZipFile(file) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        code = next(name for name in entries if name.endswith("data.pkl"))
        entries[code] = _spoil(entries[code], rng)
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in entries.items():
                archive.writestr(name, data)

    return f"mutation {rng.bit_generator.state['state']['state']}", make


def _spoil(content: bytes, rng: np.random.Generator) -> bytes:
    spoiled = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(spoiled)))
        match int(rng.integers(4)):
            case 0:
                spoiled[at] = int(rng.integers(256))
            case 1:
                spoiled[at : at + 1] = _OPCODES[int(rng.integers(len(_OPCODES)))]
            case 2:
                del spoiled[at : at + int(rng.integers(1, 9))]
            case _:
                spoiled[at:at] = spoiled[at : at + int(rng.integers(1, 40))]
        if not spoiled:
            break
    return bytes(spoiled)


def _flood(rng: np.random.Generator) -> tuple[str, Callable[[Path], object]]:
    """Instructions, names or keys, up to the 16 MiB that a pickle may have."""
    names = sorted(_FLOODS)
    name = names[int(rng.integers(len(names)))]
    size = int(2 ** rng.uniform(10, 24)) - 4096
    return f"{name}, {max(size, 100)} bytes", lambda file: save(file, _FLOODS[name](max(size, 100)))


def _repeat(make: Callable[[int], bytes], size: int) -> bytes:
    """The codes of 0, 1, ... up to a size."""
    codes, total, number = [], 0, 0
    while total + len(code := make(number)) <= size:
        codes.append(code)
        total += len(code)
        number += 1
    return b"".join(codes)


def _window(number: int) -> bytes:
    return program(f"{number}") + call(REBUILD, b"h\0", 0, (1, 1), (number * _ALIKE, 1), False, b"}")


_FLOODS: dict[str, Callable[[int], bytes]] = {
    "marks": lambda size: b"(" * size,
    "dictionaries": lambda size: b"}" * size,
    "nested tuples": lambda size: b"}" + b"\x85" * size,
    "nested dictionaries": lambda size: b"}\x85" * (size // 2),
    "memo entries": lambda size: b"}" + _repeat(lambda n: b"r" + struct.pack("<I", n), size),
    "keys that hash alike": lambda size: b"}(" + _repeat(lambda n: program(n * _ALIKE) + b"N", size) + b"u",
    "strides that hash alike": lambda size: storage() + b"q\0" + b"}(" + _repeat(_window, size) + b"u\x86",
    "text keys": lambda size: b"}(" + _repeat(lambda n: program(f"{n}") + b"N", size) + b"u",
    "long integers": lambda size: b"\x8a\xff" * (size // 257) + b"\x01" * (size // 257 * 255),
    "one long text": lambda size: program("a" * (size - 9) + "\U0001f600"),
    "a list of itself": lambda size: b"]q\0" + b"h\0a" * (size // 3),
    "a name without an end": lambda size: b"c" + b"a" * size,
    "other globals": lambda size: _repeat(lambda n: named("os", f"system{n}"), size),
    "binary": lambda size: np.random.default_rng(size).bytes(size),
}
