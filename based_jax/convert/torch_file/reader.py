"""Read the weight files of `torch.save` without torch, and without running any code in them.

Since torch 1.6 such a file is a zip archive: `<root>/data.pkl` pickles the state dict, where a tensor is a
call of `torch._utils._rebuild_tensor_v2` on a persistent id, and `<root>/data/<key>` holds the raw storages.

The pickle is read by `instructions.Interpreter`, which knows tensors and nothing else.
"""

import logging
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from based_jax.convert.torch_file.instructions import (
    ADVICE,
    CheckpointError,
    Interpreter,
    Tensor,
    UnsafeCheckpointError,
    show,
)
from based_jax.validate import shown_name

_LOG = logging.getLogger(__name__)
_MAX_PICKLE_BYTES = 16 << 20  # ten thousand tensors pickle to about 2 MiB
_MAX_LISTING_BYTES = 4 << 20  # ten thousand storages take about 1 MiB
_READ_BYTES = 1 << 20
# Raised by zipfile for archives that are truncated, inconsistent, encrypted or too new.
_ZIP_ERRORS = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError, OverflowError, struct.error)


def load_torch_file(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the tensors of a file written by `torch.save(state_dict)`, in the file's order.

    The pickled object is a state dict, or a dict with one under "state_dict" (Lightning). Entries that are
    not tensors are omitted, and their names logged. Only the storages in use are read, each once, so peak
    memory is close to the size of the result. Tied tensors share memory, so all arrays are read-only.

    Returns:
        Name -> C-contiguous array; bfloat16 is `ml_dtypes.bfloat16`.

    Raises:
        CheckpointError: no such file, a truncated or damaged archive, a format older than torch 1.6,
            big-endian storages, or no tensors in it.
        UnsafeCheckpointError: a global, instruction, persistent id, tensor layout or zip entry that
            `torch.save` does not write for a state dict.
    """
    file_path = Path(path)
    if not file_path.is_file():
        raise CheckpointError(f"{file_path}: no such file")
    with file_path.open("rb") as file:
        try:
            return _load(file)
        except CheckpointError as error:
            raise type(error)(f"{file_path}: {error}") from None
        except _ZIP_ERRORS as error:
            reason = shown_name(str(error))  # the message may quote 64 KiB of the file
            raise CheckpointError(f"{file_path}: truncated or damaged zip archive ({reason})") from error


def _load(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Load an open file; the caller adds the file's name to errors."""
    start = file.read(4)
    if start[:1] == b"\x80":
        raise CheckpointError(f"the pickle format from before torch 1.6: {ADVICE}")
    if start != b"PK\x03\x04":
        raise CheckpointError(f"starts with {start!r}: torch.save did not write it, or the download failed")
    archive = _Archive(file)
    found = Interpreter(archive.read("data.pkl", _MAX_PICKLE_BYTES).tobytes(), archive.storage_sizes).run()
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        _log_skipped([name for name in found if name != "state_dict"])
        found = found["state_dict"]
    if not isinstance(found, dict):
        raise CheckpointError(f"holds {show(found)}, expected a dict of tensors")
    items = ((name, value) for name, value in found.items() if type(name) is str)
    tensors = {name: value for name, value in items if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"no tensors at the top level, only {_show_names(list(found))}")
    _log_skipped([name for name in found if name not in tensors])
    return _materialise(tensors, archive)


def _materialise(tensors: Mapping[str, Tensor], archive: "_Archive") -> dict[str, np.ndarray]:
    """Read every storage in use once and build the arrays from it."""
    by_storage: dict[str, list[Tensor]] = {}
    for tensor in tensors.values():
        by_storage.setdefault(tensor.storage.key, []).append(tensor)
    arrays: dict[tuple[str, str], np.ndarray] = {}
    copied = 0
    for key, windows in by_storage.items():
        storage_bytes = archive.read(f"data/{key}", archive.num_bytes)
        for tensor in windows:
            if (key, tensor.window) in arrays:
                continue
            array = tensor.on(storage_bytes)
            if not array.flags.c_contiguous:
                # Views may overlap, so a small file could otherwise request any number of copies.
                copied += array.nbytes
                if copied > archive.num_bytes:
                    raise UnsafeCheckpointError("its strided tensors unfold to more bytes than the file has")
                array = array.copy()
            array.flags.writeable = False
            arrays[key, tensor.window] = array
    return {name: arrays[tensor.storage.key, tensor.window] for name, tensor in tensors.items()}


class _Listing:
    """A file with bounded reads, for `zipfile`, which reads the whole list of entries at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file = file

    def read(self, count: int = -1) -> bytes:
        if count > _MAX_LISTING_BYTES:
            raise UnsafeCheckpointError(
                f"the list of its zip entries has {count} bytes, expected at most {_MAX_LISTING_BYTES}"
            )
        return self._file.read(count)


class _Archive:
    """The zip file, checked as a whole before anything is read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(cast(IO[bytes], _Listing(file)))
        self.num_bytes = file.seek(0, os.SEEK_END)
        """size of the file in bytes"""
        entries = self._zip.infolist()
        self._entries = {entry.filename: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise UnsafeCheckpointError("two zip entries have the same name")
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise UnsafeCheckpointError(f"zip entry {show(entry.filename)} is compressed: {ADVICE}")
        # Overlapping entries would let a small file declare any amount of data.
        if sum(entry.file_size for entry in entries) > self.num_bytes:
            raise UnsafeCheckpointError("its zip entries declare more bytes than the file has")
        roots = [name.removesuffix("data.pkl") for name in self._entries if name.endswith("/data.pkl")]
        if len(roots) != 1:
            found = f"{len(roots)} entries named data.pkl"
            raise CheckpointError(f"{found}, expected 1: not a torch.save archive")
        self._root = roots[0]
        prefix = f"{self._root}data/"
        storages = [entry for entry in entries if entry.filename.startswith(prefix)]
        self.storage_sizes = {x.filename.removeprefix(prefix): x.file_size for x in storages}
        """key of a storage -> its bytes"""
        if f"{self._root}byteorder" in self._entries:  # absent in files of older versions
            order = self.read("byteorder", max_bytes=16).tobytes()
            if order != b"little":
                raise CheckpointError(f"byte order {order!r}, expected b'little': {ADVICE}")

    def read(self, name: str, max_bytes: int) -> np.ndarray:
        """Read the bytes of an entry below the root into an array that owns its memory."""
        entry = self._entries[self._root + name]
        if entry.file_size > max_bytes:
            raise UnsafeCheckpointError(f"{name} has {entry.file_size} bytes, expected at most {max_bytes}")
        content = np.empty(entry.file_size, np.uint8)
        position = 0
        with self._zip.open(entry) as stream:
            # In chunks: one large read would hold the storage twice. The last, empty read checks the CRC.
            while chunk := stream.read(_READ_BYTES):
                content[position : position + len(chunk)] = np.frombuffer(chunk, np.uint8)
                position += len(chunk)
        if position != entry.file_size:
            raise CheckpointError(f"zip entry {show(name)} ends after {position} of {entry.file_size} bytes")
        return content


def _show_names(names: list[Any]) -> str:
    shown = ", ".join(map(show, names[:10])) or "nothing"
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def _log_skipped(names: list[Any]) -> None:
    if names:
        _LOG.info("entries that are not weights were left out: %s", _show_names(names))
