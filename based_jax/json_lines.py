"""Files of JSON objects, one per line, which survive a crash and name the lines that something damaged."""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from based_jax.whole_file import whole_file

_LOGGER = logging.getLogger(__name__)


class JsonLines:
    """The objects of a file, to which more are appended.

    Opening drops a truncated last line, to which the next object would otherwise be appended. Invalid lines
    are dropped with a warning, and the original file is kept as damaged_NAME.
    """

    def __init__(self, path: Path, keys: Mapping[str, type]):
        """Read the file, if there is one; `keys` and errors are those of `read_lines`."""
        self.path = path
        self.rows, damaged = read_lines(path, keys)
        write_lines(path, self.rows, damaged)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append objects to the file."""
        added = [*rows]
        self.rows += added
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(row, allow_nan=False)}\n" for row in added))


def read_lines(path: Path, keys: Mapping[str, type]) -> tuple[list[dict[str, Any]], str]:
    """Return the complete lines of a file of JSON objects, and a description of invalid ones ("" if none).

    `keys` are the required keys of each object and the types of their values. OSError: the file cannot be
    read, or is a directory or a pipe.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: expected a regular file")
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    entries, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line.decode())
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict) and all(type(entry.get(name)) is kind for name, kind in keys.items()):
            entries.append(entry)
        else:
            damaged.append(str(number))
    more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
    return entries, f"line {', '.join(damaged[:3])}{more}" if damaged else ""


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]], damaged: str = "") -> None:
    """Replace a file of JSON objects; if there are `damaged` lines (`read_lines`), keep the old file too."""
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    if damaged:
        kept = path.with_name(f"damaged_{path.name}")
        os.replace(path, kept)
        _LOGGER.warning("%s is damaged: %s left out; the file as it was is now %s", path, damaged, kept)
    if not path.exists() or path.read_bytes() != content:
        with whole_file(path) as file:
            file.write(content)
