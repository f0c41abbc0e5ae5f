"""load_documents: every kind of source, and every kind of damage."""

import gzip
import json
import logging
import os
import sys
import sysconfig
from pathlib import Path

import pytest
import zstandard

from based_jax.data import Document, load_documents, readers
from based_jax.data.reading import UnreadableCorpus

TEXT = "first line\r\nsecond line\rthird: héllo €\n"


def _write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def _compress(ending: str, content: bytes) -> bytes:
    return {"": lambda data: data, ".gz": gzip.compress, ".zst": zstandard.compress}[ending](content)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("extension", [".txt", ".py", ".md", ".TXT"])
def test_a_text_file_is_one_document_with_its_exact_text(tmp_path, extension, ending):
    path = _write(tmp_path / f"some.name{extension}{ending}", _compress(ending, TEXT.encode()))
    assert load_documents(str(path)).documents == (Document(path.name, TEXT),)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_jsonl_file_is_one_document_per_line(tmp_path, ending):
    texts = ["one\ntwo", "line separator \u2028 inside", TEXT]
    lines = [json.dumps({"id": 7, "text": text}, ensure_ascii=False) for text in texts]
    content = (
        f"\ufeff{lines[0]}\r\n{lines[1]}\n\n{lines[2]}"  # a byte order mark, "\r\n", a blank line, no end
    )
    corpus = load_documents(str(_write(tmp_path / f"a.jsonl{ending}", _compress(ending, content.encode()))))
    assert [document.text for document in corpus.documents] == texts
    assert [document.name for document in corpus.documents] == [f"a.jsonl{ending}:{n}" for n in (1, 2, 4)]


MARKED = {
    "a.txt": ("text\ufeff", "text\ufeff"),
    "b.py": ("x = 1", "x = 1"),
    "e.jsonl": ('{"text": "\ufeffline"}\n', "\ufeffline"),
    "f.fasta": (">r\nACGT\n", "ACGT"),
}
"""Names, contents after a byte order mark, and texts."""


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_byte_order_mark_is_not_text(tmp_path, ending, monkeypatch):
    for name, (content, text) in MARKED.items():
        path = _write(tmp_path / f"{name}{ending}", _compress(ending, content.encode("utf-8-sig")))
        for size in (1 << 20, 2):  # a chunk may end inside the mark
            monkeypatch.setattr("based_jax.data.readers._CHUNK", size)
            assert [document.text for document in load_documents(str(path)).documents] == [text]


def test_a_large_gzip_file_is_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("based_jax.data.readers._CHUNK", 5)  # a member's text comes in many chunks
    texts = ["a" * 100, "", "b" * 10, "c"]
    packed = b"".join(gzip.compress(text.encode()) for text in texts)
    _write(tmp_path / "a.txt.gz", packed + bytes(20))
    assert load_documents(str(tmp_path)).documents[0].text == "".join(texts)


def test_a_directory_is_read_recursively_in_the_order_of_its_paths(tmp_path):
    for name in ("b.txt", "a/z.py", "a/b/c.md", "c.jsonl", "ignored.bin", "a/no_extension"):
        _write(tmp_path / name, _lines(name) if name.endswith("jsonl") else name)
    corpus = load_documents(str(tmp_path))
    assert [document.name for document in corpus.documents] == ["a/b/c.md", "a/z.py", "b.txt", "c.jsonl:1"]
    assert [document.text for document in corpus.documents] == ["a/b/c.md", "a/z.py", "b.txt", "c.jsonl"]
    assert corpus.skipped == ()
    assert corpus == load_documents(str(tmp_path))


def test_a_glob_takes_matching_files_and_may_cross_directories(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "d.md", "e.bin"):
        _write(tmp_path / name, name)
    texts = {
        pattern: [document.text for document in load_documents(str(tmp_path / pattern)).documents]
        for pattern in ("*.txt", "**/*.txt", "*", "[ab].*")
    }
    assert texts == {
        "*.txt": ["a.txt", "b.txt"],
        "**/*.txt": ["a.txt", "b.txt", "sub/c.txt"],
        "*": ["a.txt", "b.txt", "d.md"],
        "[ab].*": ["a.txt", "b.txt"],
    }


def test_links_and_repeated_wildcards_give_each_file_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/x.txt", "a/b/y.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "same.txt").symlink_to(tmp_path / "a" / "x.txt")
    (tmp_path / "a" / "zz.txt").hardlink_to(tmp_path / "a" / "b" / "y.txt")
    for name in ("loop", "other", "b/up"):  # with two of them Python's glob does not end
        (tmp_path / "a" / name).symlink_to(tmp_path / "a")
    (tmp_path / "a" / ".hidden").mkdir()
    (tmp_path / "a" / ".hidden" / "h.txt").write_text("h")
    for spec in ("**/*.txt", "**/" * 30 + "*.txt", "a/**", "*/**/**", "**"):
        texts = [document.text for document in load_documents(str(tmp_path / spec)).documents]
        assert sorted(texts) == ["a/b/y.txt", "a/x.txt"], spec
    assert len(load_documents(str(tmp_path / "a" / "loop" / "*.txt")).documents) == 2
    assert len(load_documents(str(tmp_path / "a")).documents) == 3  # with the hidden one
    assert len(load_documents(str(tmp_path / "a" / ".h*" / "*")).documents) == 1


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    path = _write(tmp_path / "data[1].txt", "yes")
    _write(tmp_path / "data1.txt", "no")
    assert [document.text for document in load_documents(str(path)).documents] == ["yes"]


def test_the_standard_library_without_its_tests_and_packages():
    corpus = load_documents("stdlib")
    names = [document.name for document in corpus.documents]
    assert names == sorted(names)
    assert {"argparse.py", "json/decoder.py", "unittest/mock.py", "idlelib/editor.py"} <= set(names)
    directories = {part for name in names for part in name.split("/")[:-1]}
    assert not directories & {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    assert all(name.endswith(".py") for name in names)
    assert corpus.num_bytes > 3_000_000
    root = Path(sysconfig.get_path("stdlib"))
    assert all((root / item.name).exists() for item in corpus.skipped)
    source = next(document for document in corpus.documents if document.name == "argparse.py")
    assert source.text.encode() == (root / "argparse.py").read_bytes()
    assert load_documents("stdlib") == corpus


# --- damage: skipped, and accounted for


def test_unusable_files_are_skipped_by_reason(tmp_path, caplog):
    packed = gzip.compress(TEXT.encode() * 50)
    frame = zstandard.compress(TEXT.encode() * 50)
    damaged = {
        "cut.txt.gz": packed[:-9],
        "cut_header.txt.gz": packed[:5],
        "flipped.txt.gz": packed[:20] + b"\xff\x00\xff" + packed[23:],
        "junk.txt.gz": b"not gzip",
        "cut.txt.zst": frame[:-1],
        "cut_second.txt.zst": frame + frame[:-3],
        "junk.txt.zst": b"not zstandard",
    }
    others = {
        "binary.txt": b"PK\0\1",
        "binary_inside.txt.gz": gzip.compress(b"a\0b"),
        "empty.txt": b"",
        "empty_inside.txt.zst": zstandard.compress(b""),
        "blank.jsonl": b"\n  \n",
        "latin.py": "café".encode("latin-1"),
        "latin.jsonl": '{"text": "café"}'.encode("latin-1"),
    }
    reasons = dict.fromkeys(damaged, "damaged")
    reasons |= {"binary.txt": "binary", "binary_inside.txt.gz": "binary"}
    reasons |= dict.fromkeys(("empty.txt", "empty_inside.txt.zst", "blank.jsonl"), "empty")
    reasons |= {"latin.py": "not UTF-8", "latin.jsonl:1": "not UTF-8"}
    for name, content in (damaged | others).items():
        _write(tmp_path / name, content)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    reasons["gone.txt"] = "unreadable"
    _write(tmp_path / "some.jsonl", _lines("kept", "", "kept too"))
    reasons["some.jsonl:2"] = "empty"
    _write(tmp_path / "good.txt", TEXT)

    with caplog.at_level(logging.INFO, logger="based_jax.data.reading"):
        corpus = load_documents(str(tmp_path))
    assert [document.text for document in corpus.documents] == [TEXT, "kept", "kept too"]
    assert {item.name: item.reason for item in corpus.skipped} == reasons
    assert len(corpus.skipped) == len(reasons)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "skipped 16 (" in record.getMessage()
    assert corpus.describe()["skipped"] in record.getMessage()


@pytest.mark.parametrize(("cut", "junk"), [(-9, b""), (None, b"no gzip")])
def test_the_lines_before_damage_are_kept(tmp_path, cut, junk):
    texts = [f"text {number}" for number in range(1000)]
    _write(tmp_path / "damaged.jsonl.gz", gzip.compress(_lines(*texts).encode())[:cut] + junk)
    corpus = load_documents(str(tmp_path))
    kept = [document.text for document in corpus.documents]
    assert kept == texts[: len(kept)]
    assert len(kept) > 990
    assert [item.reason for item in corpus.skipped] == ["damaged"]


def test_a_frame_with_a_long_window_is_refused_by_name(tmp_path):
    """Its header asks for 2^28 bytes of memory, as after zstd --long=28."""
    _write(tmp_path / "long.txt.zst", b"\x28\xb5\x2f\xfd\x00\x90\x09\x00\x00a")
    assert "long.txt.zst: zstd decompressor error: Frame requires too much memory" in _error(
        str(tmp_path), UnreadableCorpus
    )


# --- errors: one line that says what was given and what was expected


def _error(spec: str, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        load_documents(spec)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["nowhere.txt", "no/such/directory", "nul\0.txt", "x" * 5000, "*.txt"])
def test_a_missing_path_or_a_glob_without_a_match_is_an_error(tmp_path, name):
    (tmp_path / "directory.txt").mkdir()
    spec, problem = str(tmp_path / name), "matches no file" if "*" in name else "there is no such path"
    message = _error(spec, FileNotFoundError)
    assert message.startswith(f"data = {spec!r}: expected 'stdlib', a file")
    assert problem in message


def test_unknown_kinds_of_files_are_an_error(tmp_path):
    path = _write(tmp_path / "a.docx", "x")
    for spec in (path, tmp_path / "*", tmp_path):
        message = _error(str(spec), ValueError)
        assert repr(str(spec)) in message
        assert ".txt .py .md .jsonl" in message
    assert ".jsonl" in _error(str(_write(tmp_path / "b.gz", gzip.compress(b"x"))), ValueError)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [("a.txt", b"", "empty"), ("a.txt", b"\0", "binary"), ("a.txt", b"\xff", "not UTF-8")],
)
def test_nothing_left_is_an_error_that_says_why(tmp_path, name, content, reason):
    _write(tmp_path / name, content)
    for spec in (tmp_path, tmp_path / name):
        message = _error(str(spec), ValueError)
        assert f"expected at least one document with text; skipped 1 (1 {reason}: a.txt)" in message


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "cut',
        "not json",
        '["text"]',
        '"text"',
        '{"content": "x"}',
        '{"text": 3}',
        '{"text": null}',
        '{"text": "\\ud800"}',
        "[" * 100_000,
    ],
    ids=lambda line: line[:12],
)
def test_a_broken_line_is_an_error_that_names_file_and_line(tmp_path, line):
    _write(tmp_path / "sub/a.jsonl", _lines("fine") + "\n" + line + "\n" + _lines("fine"))
    assert _error(str(tmp_path), ValueError).startswith("sub/a.jsonl, line 3: expected a JSON object")


def test_zstandard_is_only_needed_for_its_files(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    _write(tmp_path / "a.txt", "a")
    assert len(load_documents(str(tmp_path)).documents) == 1
    _write(tmp_path / "b.txt.zst", b"x")
    message = _error(str(tmp_path), ImportError)
    assert "b.txt.zst" in message
    assert "pip install 'based-jax[data]'" in message


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_compressed_file_made_to_fill_memory_is_refused(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(readers, "_MIN_LIMIT", 1 << 20)
    monkeypatch.setattr(readers, "MAX_RATIO", 20)
    packed = {"gz": gzip.compress, "zst": zstandard.compress}[ending]
    path = tmp_path / f"x.txt.{ending}"
    path.write_bytes(packed(b"a" * (1 << 20)))
    assert len(load_documents(str(path)).documents[0].text) == 1 << 20
    path.write_bytes(packed(b"a" * ((4 << 20) + 1)))
    with pytest.raises(ValueError, match=rf"x\.txt\.{ending}: .* at most 1048576 \(20 times its own size"):
        load_documents(str(path))


def test_text_beyond_the_limit_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("a" * 10)
    assert len(load_documents(str(path), max_bytes=10).documents) == 1
    with pytest.raises(
        ValueError, match=r"x\.txt: 10 or more bytes of text, expected at most 9 .*raise max_bytes"
    ):
        load_documents(str(path), max_bytes=9)
    os.truncate(path, 1 << 40)  # sparse
    with pytest.raises(ValueError, match=r"x\.txt: 1099511627776 or more bytes"):
        load_documents(str(path))


def test_json_files_are_text_if_include_asks_for_them(tmp_path):
    """A directory of text or code has .json files that are no documents."""
    _write(tmp_path / "package.json", b'{"name": "x"}')
    _write(tmp_path / "a.jsonl", b'{"text": "one"}\n')
    corpus = load_documents(str(tmp_path))
    assert [document.text for document in corpus.documents] == ["one"]
    assert corpus.describe()["not read"] == "1 file by suffix (1 .json); --include '*.json' reads them too"
    for include in ("*", "*.json"):
        texts = {document.text for document in load_documents(str(tmp_path), include).documents}
        assert texts == {'{"name": "x"}', "one"}
