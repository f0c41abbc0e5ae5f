"""Snapshots of a prefix: changed bytes, arrays and notes, forged checksums."""

import atexit
import importlib
import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chex
import numpy as np
from safetensors.numpy import load_file, save_file

from based_jax.generate import load_snapshot, save_snapshot
from tests.generate.tiny import make_tiny
from tests.hostile.attack import Attack
from tests.hostile.damage import Rng, damaged_bytes, other_kind

module = importlib.import_module("based_jax.generate.engine.snapshot")  # beside the function of that name

TOKENS = list(range(3, 24))
KINDS = ("bytes", "bytes", "header", "arrays", "forged", "notes", "kind")


def attacks(rng: Rng, count: int) -> Iterator[Attack]:
    """A snapshot that loads is the one that was saved."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    tiny = make_tiny("CLSA")
    original = module.snapshot(tiny.model, tiny.params, TOKENS)
    path = Path(folder.name) / "snapshot"
    save_snapshot(path, tiny.model, tiny.params, *original)
    content, tensors = path.read_bytes(), load_file(path)
    (size,) = struct.unpack("<Q", content[:8])
    notes = json.loads(content[8 : 8 + size])["__metadata__"]

    def run(is_forged: bool) -> None:
        found = load_snapshot(path, tiny.model, tiny.params)
        assert not is_forged, "a forged snapshot was taken"
        chex.assert_trees_all_equal(found, original)

    run(is_forged=False)
    for number in range(count):
        if path.is_symlink() or not path.is_file():
            _remove(path)
        kind = str(rng.choice(KINDS))
        changed, description = content, ""
        if kind == "bytes":
            description, changed = damaged_bytes(rng, content)
        elif kind == "header":
            description, header = damaged_bytes(rng, content[8 : 8 + size])
            changed = struct.pack("<Q", len(header)) + header + content[8 + size :]
        elif kind != "kind":
            description, changed = _rewritten(rng, kind, tensors, notes, path)
        path.write_bytes(changed)
        if kind == "kind":
            description = other_kind(rng, path)
        yield Attack(f"{kind} {number}: {description}", lambda is_forged=kind == "forged": run(is_forged))


def _remove(path: Path) -> None:
    """Remove the file for the next one."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _rewritten(
    rng: Rng, kind: str, tensors: dict[str, np.ndarray], notes: dict[str, str], path: Path
) -> tuple[str, bytes]:
    """A whole file with one number of one array, or one note, changed; what, and its bytes."""
    tensors, notes = {name: tensor.copy() for name, tensor in tensors.items()}, dict(notes)
    if kind == "notes":
        description = str(rng.choice(list(notes)))
        notes[description] = str(rng.choice(["", "1", "0" * 64, notes[description][::-1]]))
    else:
        names = [name for name in tensors if kind == "arrays" or _bounded(tensors[name], name)]
        description = str(rng.choice(names))
        flat: Any = tensors[description].reshape(-1)
        at = int(rng.integers(len(flat)))
        if flat.dtype.kind == "b":
            flat[at] = not flat[at]
        elif flat.dtype.kind in "iu":
            flat[at] = rng.choice([-1, 2**31 - 1, -(2**31), 50 + len(TOKENS)])
        else:
            flat[at] = np.nan if kind == "forged" else rng.choice([np.nan, np.inf, flat[at] + 1, 1e38])
    if kind == "forged":
        notes["sha256"] = module._digest(tensors)
    save_file(tensors, path, notes)
    return description, path.read_bytes()


def _bounded(tensor: np.ndarray, name: str) -> bool:
    """Whether a forger's value in this array is refused: segment ids may be any integers."""
    return tensor.dtype.kind not in "iub" or name.rpartition("/")[2] != "segment"
