"""manifest.json: read as it was written, and refused by the file's name for what would read other tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from based_jax.data.shards.manifest import FILE, Manifest
from based_jax.data.shards.reader import TokenShards
from tests.data.shards.directories import write_shards


@pytest.fixture
def directory(tmp_path) -> Path:
    return write_shards(tmp_path / "shards", [["one", "two"], ["three"]], [["held out"]])


def test_what_is_written_is_read(directory, tmp_path):
    manifest = Manifest.read(directory)
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert (tmp_path / FILE).read_bytes() == (directory / FILE).read_bytes()


def _changed(content: Any, path: str, value: Any) -> None:
    *parents, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    for name in parents:
        content = content[name]
    if value is None:
        del content[last]
    else:
        content[last] = value


SHARD = "splits.train.shards.1"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("version", 2, "version = 2: expected 1, the version that this code reads"),
        ("version", "1", "version = '1': expected 1, the version"),
        ("dtype", None, "missing 1 required positional argument: 'dtype'"),
        ("more", 1, "unexpected keyword argument 'more'"),
        ("tokenizer", None, "'tokenizer'"),
        ("tokenizer.vocab_size", 0, "vocab_size = 0"),
        ("held_out.fraction", 1.5, "fraction = 1.5"),
        ("splits.held_out", None, r"splits = .*: expected the objects train, held_out"),
        (f"{SHARD}.file", "../../a.tokens.npy", r"shards\[1\]\.file = .*: expected train/00001"),
        (f"{SHARD}.file", "train/00002.tokens.npy", r"shards\[1\]\.file = .*: expected train/00001"),
        (f"{SHARD}.tokens", "7", "tokens = '7'"),
        ("skipped.empty", -1, "skipped"),
    ],
)
def test_what_is_no_manifest_is_refused_by_name(directory, path, value, message):
    content = json.loads((directory / FILE).read_text())
    _changed(content, path, value)
    (directory / FILE).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"^{directory}/{FILE}: .*{message}"):
        TokenShards.open(directory)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null", b'{"version": 1}'])
def test_a_damaged_file_is_refused_by_name(directory, content):
    (directory / FILE).write_bytes(content)
    with pytest.raises(ValueError, match=f"{directory}/{FILE}"):
        TokenShards.open(directory)
