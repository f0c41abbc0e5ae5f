"""Write weight files for `torch.load`, without torch: the counterpart of `reader`.

The archive has the format of `torch.save` since torch 1.6, and names only the storage types,
`torch._utils._rebuild_tensor_v2` and `collections.OrderedDict`, so `weights_only=True` reads it.
"""

import math
import os
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from based_jax.convert.torch_file.instructions import STORAGE_DTYPES
from based_jax.files import raw_bytes, whole_file
from based_jax.validate import expect

_ROOT = "archive"
_PROTOCOL = pickle.PROTO + b"\x02"
_VERSION = b"3\n"
"""Version of torch's archive format, which current torch still writes."""
_BIG_ENTRY = 1 << 31
"""Bytes from which a zip entry needs the 64-bit format."""
_STORAGES = {dtype.name: name for name, dtype in STORAGE_DTYPES.items()}


def write_torch_file(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray | jax.Array]) -> None:
    """Write a state dict for torch atomically, with the same bytes for the same input.

    Args:
        path: the file to create or replace; its directory must exist.
        tensors: name -> array (NumPy or JAX, any strides); bfloat16 is `ml_dtypes.bfloat16`. Names with the
            same array object, such as a tied head, share a storage, like torch's tied tensors.

    Raises:
        ValueError: no tensors, or a dtype that torch has no storage for.
        FileNotFoundError: no such directory.
    """
    expect(bool(tensors), "tensors", tensors, "at least one")
    for name, tensor in tensors.items():
        dtype = np.dtype(tensor.dtype).name
        expect(dtype in _STORAGES, f"dtype of {name}", dtype, "one of " + ", ".join(_STORAGES))
    storages = {id(tensor): tensor for tensor in tensors.values()}
    keys = {identity: str(number) for number, identity in enumerate(storages)}
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        items = b"".join(_program(name) + _tensor(array, keys[id(array)]) for name, array in tensors.items())
        program = pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS
        _write(archive, "data.pkl", _PROTOCOL + program + pickle.STOP)
        _write(archive, "byteorder", b"little")
        for identity, tensor in storages.items():
            _write(archive, f"data/{keys[identity]}", raw_bytes(tensor))
        _write(archive, "version", _VERSION)


def _write(archive: zipfile.ZipFile, name: str, content: bytes | memoryview) -> None:
    entry = zipfile.ZipInfo(f"{_ROOT}/{name}")  # dated 1980, so that the bytes are reproducible
    with archive.open(entry, "w", force_zip64=len(content) >= _BIG_ENTRY) as stream:
        stream.write(content)


def _tensor(tensor: Any, key: str) -> bytes:
    """Return instructions that build a contiguous tensor on the storage `key`."""
    dtype, shape = np.dtype(tensor.dtype).name, tuple(tensor.shape)
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    identity = ("storage", _global(_STORAGES[dtype]), key, "cpu", math.prod(shape))
    storage = _program(identity) + pickle.BINPERSID
    hooks = _global("collections.OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    arguments = (storage, 0, shape, strides, False, hooks)
    return _global("torch._utils._rebuild_tensor_v2") + _program(arguments) + pickle.REDUCE


def _global(name: str) -> bytes:
    module, _, attribute = name.rpartition(".")
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def _program(value: Any) -> bytes:
    """Return instructions that push a value; `bytes` are already instructions."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple):
        return pickle.MARK + b"".join(map(_program, value)) + pickle.TUPLE
    return pickle.dumps(value, protocol=2)[len(_PROTOCOL) : -len(pickle.STOP)]
