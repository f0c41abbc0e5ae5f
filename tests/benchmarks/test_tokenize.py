"""`python -m benchmarks tokenize` on tiny sizes: a corpus that can be read, rates, memory, the table."""

import json
import sys

import pytest

from based_jax.data import load_documents, load_tokenizer
from benchmarks.__main__ import main
from benchmarks.data import tokenize_corpus, tokenize_run
from benchmarks.data.tokenize_corpus import FORMATS, Corpus
from tests.benchmarks.refusals import expect_one_line

PAGE = "before\n<!-- tokenize -->\nold\n<!-- /tokenize -->\nafter\n"


class StubLibrary(tokenize_run.Library):
    """Count the stretches."""

    def __init__(self):
        self.count = 0

    def tokens_per_second(self, seconds):
        self.count += 1
        return float(self.count)


def test_a_corpus_has_every_format_and_reads_back(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize_corpus, "FILE_BYTES", 20_000)
    files = Corpus().write(tmp_path, 90_000)
    assert [path.name[4:] for path in files] == [*FORMATS, FORMATS[0]]
    documents = load_documents(str(tmp_path)).documents
    assert [document.text for document in documents[:2]] == list(Corpus().documents(20_000))[:2]
    assert 90_000 <= sum(len(document.text) for document in documents) < 250_000
    texts = [document.text for document in documents]
    assert len({*texts}) == len(texts)


def test_the_tokenizer_is_a_file_that_train_tokenize_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize_corpus, "_SAMPLE", 50_000)
    Corpus().train_tokenizer(tmp_path / "tokenizer.json", 300)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 300
    text = next(iter(Corpus(1).documents(1)))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    library = tokenize_run.Library(tmp_path / "tokenizer.json", [[text], [text, text]])
    assert library.tokens_per_second(0.01) > 0


def test_a_run_is_paused_for_the_library_and_its_memory_is_watched(tmp_path, monkeypatch):
    """The process takes a second of its own time, and a child of it 100 MiB."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__init__.py").touch()
    (tmp_path / "train" / "tokenize.py").write_text(
        "import subprocess, sys, time\n"
        "child = 'import time; b = bytearray(100 << 20); b[::4096] = b[::4096]; time.sleep(1)'\n"
        "sys.exit(subprocess.run([sys.executable, '-c', child]).returncode + int(sys.argv[1]))\n"
    )
    monkeypatch.chdir(tmp_path)
    library = StubLibrary()
    run = tokenize_run.tokenize(["0"], library, 0.4, 0.1)
    assert run.seconds > 0.9
    assert run.alone == [float(i + 1) for i in range(library.count)]
    assert library.count > 2
    if sys.platform == "linux":
        assert run.peak_mib is not None
        assert run.peak_mib > 100
    with pytest.raises(RuntimeError, match="status 3"):
        tokenize_run.tokenize(["3"], library, 9, 0.1)


@pytest.mark.slow
def test_the_command_reports_and_fills_its_page(tmp_path, capsys):
    (tmp_path / "page.md").write_text(PAGE)
    sizes = [
        "--gigabytes",
        "0.001",
        "--vocab-size",
        "300",
        "--every",
        "1",
        "--seconds",
        "0.1",
        "--workers",
        "1",
    ]
    files = ["--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "page.md")]
    assert main(["tokenize", *sizes, *files, "--scratch", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "page.md"]
    result = json.loads((tmp_path / "a.json").read_text())
    assert result["complete"]
    (row,) = result["rows"]
    assert row["text_bytes"] >= 1_000_000
    assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
    assert row["shard_bytes"] >= 2 * row["tokens"]
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before\n<!-- tokenize -->\n")
    assert page.endswith("<!-- /tokenize -->\nafter\n")
    assert f"| {row['documents']:,} |" in page
    assert "library alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gigabytes", "0"], "--gigabytes = 0.0: expected at least 0.001"),
        (["--vocab-size", "10"], "--vocab-size = 10: expected at least 257"),
        (["--workers", "0"], "--workers = 0: expected at least 1"),
        (["--every", "0"], "--every = 0.0: expected more than 0 seconds"),
    ],
)
def test_bad_flags_are_one_line(flags, message, capsys):
    expect_one_line("tokenize", flags, message, capsys)
