"""hf:NAME: which rows a spec names, resumed streams, and changed data, by a stand-in for the library."""

import importlib
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from based_jax.data import Document, Skipped, load_documents, load_tokenizer
from based_jax.data.hub import read_texts
from based_jax.data.shards.blocks import find_sources
from based_jax.data.shards.manifest import HeldOutRule
from based_jax.data.shards.tokenize import Progress, tokenize

TEXTS = [f"text {n} " * (n % 7 + 1) + "é\n" for n in range(40)]


def _write(directory: Path, split: str, rows: list) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


@pytest.fixture
def library(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "stub_library"))
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    yield importlib.import_module("datasets")
    del sys.modules["datasets"]


@pytest.fixture
def hub(library, tmp_path, monkeypatch) -> Path:
    """Data sets that specs name relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "tiny", "train", [{"text": "a"}, {"text": ""}, {"text": "b"}, {"text": None}])
    _write(tmp_path / "tiny", "test", [{"text": "t"}])
    _write(tmp_path / "owner" / "tiny" / "small", "train", [{"text": "c"}])
    _write(tmp_path / "images", "train", [{"image": "x", "label": 1}])
    _write(tmp_path / "long", "train", [{"text": text, "n": 1} for text in TEXTS])
    _write(tmp_path / "lost", "train", [{"text": "a"}, "broken"])
    return tmp_path


@pytest.mark.usefixtures("hub")
def test_rows_are_documents():
    corpus = load_documents("hf:tiny")
    assert corpus.documents == (Document("tiny:0", "a"), Document("tiny:2", "b"))
    assert corpus.skipped == (Skipped("tiny:1", "empty"), Skipped("tiny:3", "empty"))
    assert load_documents("hf:tiny:test").documents == (Document("tiny:0", "t"),)
    assert load_documents("hf:owner/tiny:small:train").documents == (Document("owner/tiny:0", "c"),)


def _tokenize(out: Path, spec: str, **more):
    rule = HeldOutRule(0.0, None, None)
    return tokenize(find_sources([spec]), load_tokenizer(), out, workers=1, rule=rule, **more)


WANTED = "hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("hf:", WANTED),
        ("hf:tiny:", WANTED),
        ("hf:a:b:c:d", WANTED),
        ("hf:unknown", r"a split 'train' that can be loaded; FileNotFoundError: no data set unknown, None$"),
        ("hf:tiny:valid", r"a split 'valid' .*Available splits: \['test', 'train'\]"),
        ("hf:images", "of row 0, its string fields are image"),
    ],
)
def test_errors_name_the_spec(spec, expected, tmp_path):
    with pytest.raises(ValueError, match=rf"^data = '{spec}': expected .*{expected}"):
        load_documents(spec)
    with pytest.raises(ValueError, match=rf"^data = '{spec}': expected .*{expected}"):
        _tokenize(tmp_path / "out", spec)


@pytest.mark.usefixtures("hub")
def test_a_lost_connection_is_one_error():
    message = r"^data = 'hf:lost': reading ended after 1 rows; RuntimeError: the connection was lost$"
    with pytest.raises(OSError, match=message):
        list(read_texts("hf:lost"))


def test_without_the_library_an_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for read in (load_documents, lambda spec: _tokenize(tmp_path, spec)):
        with pytest.raises(ImportError, match=r"'hf:tiny'.*pip install 'based-jax\[data\]'"):
            read("hf:tiny")


def test_an_interrupted_stream_goes_on_at_the_next_row(hub, library, monkeypatch):
    monkeypatch.setattr("based_jax.data.shards.blocks.BLOCK", 100)
    manifest = _tokenize(hub / "a", "hf:long")
    assert manifest is not None
    (shard,) = manifest.splits["train"].shards
    tokens = np.load(hub / "a" / shard.file)
    parts = np.split(tokens[:-1], np.load(hub / "a" / shard.starts_file)[1:])
    assert [load_tokenizer().decode(part) for part in parts] == TEXTS
    library.STREAMED.clear()
    for _ in range(100):
        calls = [False, True]

        def go_on(now: Progress, calls=calls) -> bool:
            return calls.pop()

        if _tokenize(hub / "b", "hf:long", progress=go_on):
            break
    firsts = [first for _, first in library.STREAMED]
    assert len(firsts) > 3
    assert all(before < after for before, after in itertools.pairwise(firsts))
    for file in (shard.file, shard.starts_file):
        assert (hub / "a" / file).read_bytes() == (hub / "b" / file).read_bytes()


def test_other_files_of_the_split_are_other_data(hub):
    assert _tokenize(hub / "out", "hf:long") == _tokenize(hub / "out", "hf:long")
    _write(hub / "long", "test", [{"text": "of another split"}])
    assert _tokenize(hub / "out", "hf:long") is not None
    _write(hub / "long", "train", [{"text": "changed"}])
    with pytest.raises(ValueError, match="data = 'hf:long': expected the files as they were"):
        _tokenize(hub / "out", "hf:long")
