"""Verify the content of a checkpoint, so that damage and foreign files are found before training resumes."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from based_jax.files import read_json
from based_jax.whole_file import whole_file

FILE = "checksums.json"
_CHUNK = 1 << 24  # bytes
_FOLDERS = ("data", "state")  # of a checkpoint
# Entries of checksums.json that are not files -> message if they differ.
_FACTS = {"step": "it is a checkpoint of step {}", "arrays": "its arrays are not those of this run's model"}


def array_checksum(state: Any) -> int:
    """Return a CRC-32 of the shapes and dtypes of a pytree's arrays, independent of their order."""
    kinds = sorted(f"{leaf.dtype}{tuple(leaf.shape)}" for leaf in jax.tree.leaves(state))
    return zlib.crc32("\n".join(kinds).encode())


def write_checksums(directory: Path, facts: Mapping[str, int]) -> None:
    """Write `facts` (`step`, `arrays`), and size and CRC-32 of every file, to checksums.json."""
    found = {name: [path.stat().st_size, _crc32(path)] for name, path in _files(directory).items()}
    with whole_file(directory / FILE) as file:
        file.write(json.dumps({**facts, **found}).encode())


def find_damage(directory: Path, facts: Mapping[str, int]) -> str | None:
    """Describe damage of a checkpoint's files or a mismatch of its `facts`; None if it is as written."""
    path = directory / FILE
    try:
        if not directory.is_dir():
            return "it is no directory"
        if not path.exists():
            return f"it has no {FILE}"
        strange = [entry for entry in directory.rglob("*") if not (entry.is_file() or entry.is_dir())]
        if strange:
            return f"{strange[0].relative_to(directory)} is no regular file"
        recorded = read_json(path)
        found = {name: recorded.pop(name) for name in _FACTS}
        for name, fact in facts.items():
            if found[name] != fact:
                return _FACTS[name].format(found[name])
        if not {name.partition("/")[0] for name in recorded}.issuperset(_FOLDERS):
            return f"{FILE} lists no files of a checkpoint"
        files = _files(directory)
        for name, (size, checksum) in recorded.items():
            if name not in files:
                return f"{name} is missing"
            if files[name].stat().st_size != size:
                return f"{name} has {files[name].stat().st_size} bytes of {size}"
            if _crc32(files[name]) != checksum:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        return f"{FILE} cannot be checked ({error})"
    return None


def _files(directory: Path) -> dict[str, Path]:
    """List files by name relative to `directory`, except those directly in it, which Orbax edits later."""
    paths = (path for path in sorted(directory.glob("*/**/*")) if path.is_file())
    return {path.relative_to(directory).as_posix(): path for path in paths}


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
