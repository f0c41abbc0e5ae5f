"""What attack classes do to files: bytes changed at random, JSON with other values, files of other kinds."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator

VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31 - 1, 2**63, 10**30, 0.5, float("nan"), float("inf"), "", "x", "..", "/", "\0",
    "\ud800", "9" * 400, [], [[]], {}, {"a": 1}, [None], "x" * 10**4,
]  # fmt: skip
"""what stands in for a value of a JSON file"""


def damaged_bytes(rng: Rng, content: bytes) -> tuple[str, bytes]:
    """One change of a file's bytes, and what it is."""
    at = int(rng.integers(max(len(content), 1)))
    kind = rng.choice(["flip", "flips", "cut", "zeros", "insert", "garbage", "empty", "twice", "deep"])
    if kind == "flip":
        return _flipped(rng, content, 1)
    if kind == "flips":
        return _flipped(rng, content, 50)
    changed = {
        "cut": content[:at],
        "zeros": content[:at] + bytes(len(content) - at),
        "insert": content[:at] + rng.bytes(5) + content[at:],
        "garbage": rng.bytes(len(content)),
        "empty": b"",
        "twice": content + content,
        "deep": b"[" * 10**5,
    }
    return f"{kind} at {at}", changed[kind]


def _flipped(rng: Rng, content: bytes, count: int) -> tuple[str, bytes]:
    changed = bytearray(content or b"\0")
    bits = rng.integers(8 * len(changed), size=count).tolist()
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return f"bits {bits[:3]} of {count}", bytes(changed)


def mutated_json(rng: Rng, value: Any) -> tuple[str, Any]:
    """A JSON value with one entry at any depth replaced, removed or added, and what was done."""
    changed = copy.deepcopy(value)
    path, parent, key = "", None, None
    node = changed
    while isinstance(node, dict | list) and node and (parent is None or rng.random() < 0.7):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        parent, key = node, keys[int(rng.integers(len(keys)))]
        node, path = node[key], f"{path}/{key}"
    if parent is None or key is None:
        return "another document", VALUES[int(rng.integers(len(VALUES)))]
    if rng.random() < 0.3:
        del parent[key]
        return f"without {path}", changed
    parent[key] = VALUES[int(rng.integers(len(VALUES)))]
    return f"{path} = {parent[key]!r:.30}", changed


def other_kind(rng: Rng, path: Path, *, pipes: bool = True) -> str:
    """Replace a file or directory by something of another kind, or remove it; returns what was done.

    Without `pipes` there are none: who opens one waits for its other end.
    """
    kinds: dict[str, Callable[[], Any]] = {
        "removed": lambda: None,
        "a directory": path.mkdir,
        "a link to nowhere": lambda: path.symlink_to("nowhere"),
        "a link to itself": lambda: path.symlink_to(path.name),
        "a pipe": lambda: os.mkfifo(path),
        "a file": lambda: path.write_bytes(b"x"),
    }
    kind = str(rng.choice([kind for kind in kinds if pipes or kind != "a pipe"]))
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    kinds[kind]()
    return kind


def write_json(path: Path, value: Any) -> None:
    """As Python writes it: NaN and lone surrogates included."""
    path.write_text(json.dumps(value), encoding="utf-8")
