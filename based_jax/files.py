"""Read small files from untrusted sources, within generous limits; write files whole; append lines of JSON.

A model config, an index or a table of results is small and flat. Others are damaged or malicious, and are
rejected before they can exhaust memory or stack: errors are a one-line `ValueError` that begins with the
file's path.
"""

import contextlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from based_jax.validate import expect

MAX_BYTES = 8 << 20
"""Maximum size. Python needs up to 25 bytes per byte of JSON, so this takes up to 200 MiB."""

MAX_DEPTH = 64  # maximum nesting of lists and tables: far below Python's recursion limit

_HALF = re.compile("[\ud800-\udfff]")

_LOGGER = logging.getLogger(__name__)


def find_file(name: str | os.PathLike[str]) -> Path:
    """Return the path `name`, or this package's file if it is recipes/... and does not exist here."""
    path = Path(name)
    ours = Path(str(resources.files("based_jax") / str(path)))
    return ours if path.parts[:1] == ("recipes",) and not path.exists() and ours.exists() else path


def read_text(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a small UTF-8 file, without the byte order mark that some editors write first.

    Raises:
        OSError: no such file, or one that cannot be opened.
        ValueError: not a regular file, more than `max_bytes`, or not UTF-8.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
        raise ValueError(f"{path}: expected a regular file")
    with open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        size = os.stat(path).st_size
        raise ValueError(f"{path}: {size} bytes, expected at most {max_bytes} in a file of this kind")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text ({error})") from error


def read_json(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the content of a small JSON file; duplicate keys in an object are an error.

    Errors are those of `read_text` and `parse_json`.
    """
    return parse_json(read_text(path, max_bytes=max_bytes), str(path), unique_keys=True)


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the object in a small JSON file; errors are those of `read_json`, also for any other value."""
    value = read_json(path)
    expect(isinstance(value, dict), str(path), type(value).__name__, "a JSON object")
    return value


def is_text(value: Any) -> bool:
    """Return whether a JSON value is a text without half of a surrogate pair, which UTF-8 cannot encode."""
    return isinstance(value, str) and _HALF.search(value) is None


def read_json_lines(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> list[Any]:
    """Return the JSON value of each line of a small file, skipping blank lines. Errors name the line."""
    lines = read_text(path, max_bytes=max_bytes).split("\n")
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    return [parse_json(line, f"{path}, line {number}") for number, line in numbered]


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a small TOML file; errors are those of `read_text` and `parse_json`."""
    return _parsed(tomllib.loads, read_text(path), str(path), "TOML")


def parse_json(text: str | bytes, name: str, *, unique_keys: bool = False) -> Any:
    """Return the value of a JSON text; `name` is its source, for errors.

    Raises:
        ValueError: not JSON, more than `MAX_DEPTH` levels, or, with `unique_keys`, a duplicate key.
    """
    hook = _unique if unique_keys else None
    return _parsed(lambda text: json.loads(text, object_pairs_hook=hook), text, name, "JSON")


def _parsed(parse: Callable[[Any], Any], text: str | bytes, name: str, kind: str) -> Any:
    try:
        value = parse(text)
    except RecursionError as error:
        raise ValueError(f"{name}: more than {MAX_DEPTH} levels, expected fewer") from error
    except ValueError as error:
        raise ValueError(f"{name}: expected {kind} ({error})") from error
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return value
    raise ValueError(f"{name}: more than {MAX_DEPTH} levels, expected fewer")


def _children(value: Any) -> Iterator[Any]:
    """Return the lists and objects directly inside a parsed value."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (child for child in inside if isinstance(child, dict | list))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the key {key!r:.100} is there twice")
    return dict(pairs)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add `path` to an OSError that names no file: one of writing, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new binary file that replaces `path` at the end unless the block raises."""
    target = Path(path)
    scratch_directory = tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-")
    with naming(target), scratch_directory as scratch:
        unfinished = Path(scratch) / target.name
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)


def remove_unfinished(directory: Path) -> None:
    """Remove what `whole_file` leaves in a directory if its process is killed; no other may write there."""
    for scratch in directory.glob(".*-*"):
        name = scratch.name[1:].rpartition("-")[0]
        is_own = scratch.is_dir() and not scratch.is_symlink()
        if is_own and {path.name for path in scratch.iterdir()} <= {name}:
            shutil.rmtree(scratch)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON in lines that a person can read, replacing `path` at the end."""
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def raw_bytes(array: Any) -> memoryview:
    """Return an array's numbers (NumPy or JAX, any strides) as little-endian bytes, row by row."""
    found = np.asarray(array)
    found = found.astype(found.dtype.newbyteorder("<"), order="C", copy=False)
    return found.reshape(-1).view(np.uint8).data


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
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
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
        shutil.copyfile(path, kept)
        _LOGGER.warning("%s is damaged: %s left out; the file as it was is now %s", path, damaged, kept)
    if not path.exists() or path.read_bytes() != content:
        with whole_file(path) as file:
            file.write(content)
