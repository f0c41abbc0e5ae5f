"""A torch.save of our own, for files that torch would not write; and how state dicts are compared."""

import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from based_jax.convert.torch_file.instructions import UnsafeCheckpointError
from based_jax.convert.torch_file.reader import load_torch_file

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
STORAGES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


# A tiny torch.save: values become pickle instructions, and `bytes` are instructions already.


def program(value) -> bytes:
    match value:
        case bytes():
            return value
        case None:
            return pickle.NONE
        case bool():
            return pickle.NEWTRUE if value else pickle.NEWFALSE
        case int():
            encoded = pickle.encode_long(value)
            return pickle.LONG1 + bytes([len(encoded)]) + encoded
        case float():
            return pickle.BINFLOAT + struct.pack(">d", value)
        case str():
            return pickle.BINUNICODE + struct.pack("<I", len(value.encode())) + value.encode()
        case tuple():
            return pickle.MARK + b"".join(map(program, value)) + pickle.TUPLE
        case list():
            return pickle.EMPTY_LIST + pickle.MARK + b"".join(map(program, value)) + pickle.APPENDS
        case dict():
            items = b"".join(program(key) + program(item) for key, item in value.items())
            return ORDERED_DICT + pickle.MARK + items + pickle.SETITEMS
    raise TypeError(value)


def named(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def call(function: bytes, *arguments) -> bytes:
    return function + program(arguments) + pickle.REDUCE


ORDERED_DICT = call(named("collections", "OrderedDict"))
FLOATS = named("torch", "FloatStorage")
REBUILD = named("torch._utils", "_rebuild_tensor_v2")


def storage(key="0", numel=6, dtype=FLOATS, location="cpu", what="storage") -> bytes:
    return program((what, dtype, key, location, numel)) + pickle.BINPERSID


def tensor(shape=(2, 3), stride=(3, 1), offset=0, on=None, grad=False, hooks: Any = ORDERED_DICT) -> bytes:
    return call(REBUILD, storage() if on is None else on, offset, shape, stride, grad, hooks)


SIX = np.arange(6, dtype=np.float32)


def save(path: Path, content, storages=None, *, byteorder: bytes | None = b"little", root="archive") -> Path:
    """Write what torch.save would write for `content`, with storages {key: array}."""
    code = pickle.PROTO + b"\x02" + program(content) + pickle.STOP
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/data.pkl", code)
        if byteorder is not None:
            archive.writestr(f"{root}/byteorder", byteorder)
        for key, array in ({"0": SIX} if storages is None else storages).items():
            archive.writestr(f"{root}/data/{key}", np.asarray(array).tobytes())
        archive.writestr(f"{root}/version", b"3\n")
    return path


def refused(path: Path, *texts: str) -> None:
    """Assert the error for unsafe content, which names the file."""
    with pytest.raises(UnsafeCheckpointError) as caught:
        load_torch_file(path)
    file, _, message = str(caught.value).partition(": ")
    assert file == str(path)
    for text in texts:
        assert text in message


class Runs:
    """Pickles into a call that creates a file."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


def same(found, expected) -> None:
    """Assert that two state dicts have the same names, dtypes, shapes and bits."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.asarray(found[name]).tobytes() == np.asarray(array).tobytes()
