"""Options of reading text: fields of records, encodings, and the report about every file."""

import gzip
import json
from pathlib import Path

import pytest

from based_jax.data import ReadOptions, load_documents, load_tokenizer
from based_jax.data.documents import REPORT, Skipped, read_report
from based_jax.data.reading import UnreadableCorpus, load_file
from based_jax.data.shards.manifest import Manifest
from based_jax.data.sources import find_files
from based_jax.training.commands import tokenize, tokenizer
from tests.commands import run_here

FRENCH = "Un été à la plage, déjà vu, où l'été dure.\n"
DOTS = {"a.b": "dots", "a": {"x": 0}, "a.c": {"d.e": "inside"}}
RECORDS = [{"id": str(n), "body": {"content": f"text {n}", "lang": "en"}} | DOTS for n in range(3)]
BODY = ReadOptions(text_field="body.content")


def _write(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _texts(path: Path, options: ReadOptions) -> list[str]:
    return [document.text for document in load_documents(str(path), options=options).documents]


def test_the_text_is_a_field_at_any_depth(tmp_path):
    path = _write(tmp_path / "a.jsonl", RECORDS)
    assert _texts(path, BODY) == ["text 0", "text 1", "text 2"]
    assert _texts(path, ReadOptions(text_field="a.b")) == ["dots"] * 3
    assert _texts(path, ReadOptions(text_field="a.c.d.e")) == ["inside"] * 3
    with pytest.raises(
        UnreadableCorpus, match=r"'body\.text'.* are id, body\.content, body\.lang, a\.b, a\.c\.d\.e \(--text"
    ):
        load_documents(str(path), options=ReadOptions(text_field="body.text"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_field": "a..b"}, r"text_field = 'a\.\.b': expected names joined by dots"),
        ({"encoding": "latin-99"}, "encoding = 'latin-99': expected an encoding that Python knows"),
        ({"encoding": "hex"}, "encoding = 'hex': expected an encoding"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ReadOptions(**options)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "utf-16", "utf-16-le"])
def test_a_file_in_an_encoding_that_is_named(tmp_path, encoding, ending, monkeypatch):
    monkeypatch.setattr("based_jax.data.readers._CHUNK", 5)  # a character may be in two chunks
    pack = gzip.compress if ending else bytes
    (tmp_path / f"a.txt{ending}").write_bytes(pack(FRENCH.encode(encoding)))
    lines = f'{{"text": "{FRENCH[:-1]}"}}\n' * 2
    (tmp_path / f"b.jsonl{ending}").write_bytes(pack(lines.encode(encoding)))
    corpus = load_documents(str(tmp_path), options=ReadOptions(encoding=encoding))
    assert [document.text for document in corpus.documents] == [FRENCH, FRENCH[:-1], FRENCH[:-1]]
    assert not corpus.skipped


def test_a_file_in_another_encoding_is_skipped(tmp_path):
    (tmp_path / "a.txt").write_bytes(FRENCH.encode("utf-16-le"))  # without the mark
    (tmp_path / "b.txt").write_bytes(FRENCH.encode("utf-16"))
    corpus = load_documents(str(tmp_path), options=ReadOptions(encoding="utf-16"))
    assert [document.name for document in corpus.documents] == ["b.txt"]
    assert corpus.skipped == (Skipped("a.txt", "not utf-16"),)


def test_a_file_read_alone_warns_of_what_is_skipped(tmp_path, caplog):
    (tmp_path / "a.txt").write_bytes(FRENCH.encode("latin-1"))
    (file,) = find_files(str(tmp_path)).found
    assert load_file(file, ReadOptions()) == []
    assert caplog.messages == ["skipped 1 (1 not UTF-8: a.txt); --encoding names another encoding"]
    assert [found.text for found in load_file(file, ReadOptions(encoding="latin-1"))] == [FRENCH]


@pytest.fixture
def mixed(tmp_path) -> Path:
    """Files of which some cannot be read."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    _write(folder / "a.jsonl", [*RECORDS, {"other": "x"}])
    (folder / "b.txt").write_bytes(FRENCH.encode("latin-1"))
    (folder / "c.txt").write_bytes(b"\0" * 5000)
    (folder / "d.png").write_bytes(b"\0" * 9000)
    (folder / "e.txt").write_text("plain " * 50)
    (folder / "f.jsonl").write_text("\n")
    return folder


def test_tokenize_reports_every_file(mixed, tmp_path, capsys):
    argv = ["--data", mixed, "--tokenizer", "byte", "--workers", 1, "--text-field", "body.content"]
    ended = run_here(tokenize.PROG, tokenize.main, [*argv, "--out", tmp_path / "out"], capsys)
    assert ended.status == 0, ended.err
    files = {file.file: file for file in read_report(tmp_path / "out" / REPORT)}
    assert {name: (file.outcome, file.documents, file.skipped) for name, file in files.items()} == {
        "a.jsonl": ("partly kept", 3, {"no string field 'body.content'": 1}),
        "b.txt": ("skipped", 0, {"not UTF-8": 1}),
        "c.txt": ("skipped", 0, {"binary": 1}),
        "d.png": ("not read", 0, {}),
        "e.txt": ("kept", 1, {}),
        "f.jsonl": ("skipped", 0, {"empty": 1}),
    }
    assert (files["e.txt"].bytes, files["e.txt"].text_bytes) == (300, 300)
    assert files["b.txt"].message == "--encoding names another encoding"
    assert "its string fields are other" in files["a.jsonl"].message
    assert files["d.png"].message == "--include '*.png' reads it"
    out = tmp_path / "latin"
    ended = run_here(tokenize.PROG, tokenize.main, [*argv, "--encoding", "latin-1", "--out", out], capsys)
    assert Manifest.read(out).splits["train"].documents == 5
    changed = run_here(tokenize.PROG, tokenize.main, [*argv, "--out", out], capsys)
    assert "encoding = 'utf-8': expected 'iso8859-1', as" in changed.err


def test_a_trained_tokenizer_is_accepted(mixed, tmp_path, capsys):
    out = tmp_path / "new" / "t.json"
    argv = ["--data", mixed, "--text-field", "body.content", "--out", out, "--vocab-size"]
    ended = run_here(tokenizer.PROG, tokenizer.main, [*argv, 265], capsys)
    assert ended.status == 0, ended.err
    assert f"{out}: 265 tokens" in ended.out
    loaded = load_tokenizer(out)
    assert (loaded.vocab_size, loaded.decode([loaded.eot])) == (265, "")
    text = "plain text 7 <|endoftext|> é\n"
    ids = loaded.encode(text)
    assert loaded.eot not in ids
    assert loaded.decode(ids) == text
    assert len(loaded.encode("plain plain")) <= 4  # of 11 bytes
    assert "expected a new file" in run_here(tokenizer.PROG, tokenizer.main, [*argv, 265], capsys).err
    argv[5] = tmp_path / "other.json"
    small = run_here(tokenizer.PROG, tokenizer.main, [*argv, 256], capsys)
    assert "vocab_size = 256: expected at least 257" in small.err
