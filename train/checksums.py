"""Checksums of a checkpoint: storage that loses or changes bytes is noticed before training goes on."""

import json
import zlib
from pathlib import Path

from based_jax.convert.whole_file import whole_file

FILE = "checksums.json"
_CHUNK = 1 << 24  # bytes


def write_checksums(directory: Path) -> None:
    """Record size and CRC-32 of every file in the folders of `directory`, in its checksums.json."""
    found = {name: [path.stat().st_size, _crc32(path)] for name, path in _files(directory).items()}
    with whole_file(directory / FILE) as file:
        file.write(json.dumps(found).encode())


def find_damage(directory: Path) -> str | None:
    """What is wrong with the files of `directory`, in words; None if they are as they were written.

    A directory without checksums.json, from before there were any, passes.
    """
    path = directory / FILE
    if not path.exists():
        return None
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        files = _files(directory)
        for name, (size, checksum) in recorded.items():
            if name not in files:
                return f"{name} is missing"
            if files[name].stat().st_size != size:
                return f"{name} has {files[name].stat().st_size} bytes of {size}"
            if _crc32(files[name]) != checksum:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{path.name} cannot be checked ({error})"
    return None


def _files(directory: Path) -> dict[str, Path]:
    """Files by their names relative to `directory`; not those directly in it, which Orbax edits later."""
    return {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.glob("*/**/*"))
        if path.is_file()
    }


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
