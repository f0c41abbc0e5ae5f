"""Read small files from untrusted sources: text, JSON and TOML, within generous limits.

A model config, an index or a table of results is small and flat. Others are damaged or malicious, and are
rejected before they can exhaust memory or stack: errors are a one-line `ValueError` that begins with the
file's path.
"""

import json
import os
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

MAX_BYTES = 8 << 20
"""Maximum size. Python needs up to 25 bytes per byte of JSON, so this takes up to 200 MiB."""

MAX_DEPTH = 64  # maximum nesting of lists and tables: far below Python's recursion limit


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
