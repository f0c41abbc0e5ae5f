"""Blocks of documents: what is too large costs itself alone, and any block is where reading can go on."""

import json
from pathlib import Path

import numpy as np
import pytest

from based_jax.data import ReadOptions, load_tokenizer, reading
from based_jax.data.shards import blocks
from based_jax.data.shards.blocks import BlockEncoder, Position, find_sources, read_blocks

START = Position(0, 0, 0)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Limits that a test's files exceed."""
    monkeypatch.setattr(blocks, "BLOCK", 64)
    monkeypatch.setattr(reading, "MAX_LINE", 500)
    monkeypatch.setattr(reading, "MAX_DOCUMENT", 300)
    monkeypatch.setattr("based_jax.data.readers._CHUNK", 50)


def texts_of(spec: Path, start: Position = START, encoding: str = "utf-8") -> tuple[list[str], list[str]]:
    """The texts, and what was skipped for which reason."""
    encoder, texts, skipped = BlockEncoder(load_tokenizer()), list[str](), list[str]()
    for block in read_blocks(find_sources([str(spec)]).files, start, ReadOptions(encoding=encoding)):
        found = encoder.encode(block.items)
        texts += [
            load_tokenizer().decode(ids) for ids in np.split(found.tokens, np.cumsum(found.lengths))[:-1]
        ]
        skipped += [f"{item.name} {item.reason}" for _, item in found.skipped]
    return texts, skipped


def resumes_after_each_block(spec: Path, encoding: str = "utf-8") -> None:
    whole = texts_of(spec, encoding=encoding)
    blocks = read_blocks(find_sources([str(spec)]).files, START, ReadOptions(encoding=encoding))
    ends = [block.end for block in blocks]
    assert len(ends) > 2
    before = len(whole[0]) + len(whole[1])
    for end in ends[:-1]:
        texts, skipped = texts_of(spec, end, encoding=encoding)
        assert texts == whole[0][len(whole[0]) - len(texts) :]
        assert skipped == whole[1][len(whole[1]) - len(skipped) :]
        assert len(texts) + len(skipped) < before
        before = len(texts) + len(skipped)


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("long", [{0}, {3}, {9}, {0, 1, 5, 9}, set(range(10))])
def test_a_line_that_is_too_long_costs_itself_alone(tmp_path, long, end):
    lengths = [2000 + 37 * n if n in long else 7 * n + 1 for n in range(10)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": "x" * length}) for length in lengths) + end)
    texts, skipped = texts_of(path)
    assert [len(text) for text in texts] == [length for length in lengths if length < 500]
    assert skipped == [f"a.jsonl:{n + 1} too large" for n in sorted(long)]
    if len(long) == 1:
        resumes_after_each_block(path)


def test_a_record_that_is_too_large_costs_itself_alone(tmp_path):
    lengths = [10, 300, 301, 20, 5000, 299]
    path = tmp_path / "a.fa"
    lines = (["ACGT" * 5] * (length // 20) + ["A" * (length % 20)] for length in lengths)
    path.write_text("\n".join(f">chr{n}\n" + "\n".join(own) for n, own in enumerate(lines)))
    texts, skipped = texts_of(path)
    assert [len(text) for text in texts] == [10, 300, 20, 299]
    assert skipped == ["a.fa:chr2 too large", "a.fa:chr4 too large"]
    resumes_after_each_block(path)


def test_a_text_that_is_too_large_costs_itself_alone(tmp_path):
    for name, size in (("a", 300), ("b", 301), ("c", 1)):
        (tmp_path / f"{name}.txt").write_text("x" * size)
    texts, skipped = texts_of(tmp_path)
    assert [len(text) for text in texts] == [300, 1]
    assert skipped == ["b.txt too large"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1", "utf-16-le"])
def test_lines_in_any_encoding_resume(tmp_path, encoding):
    """Positions count bytes of UTF-8, not of the file."""
    path = tmp_path / "a.jsonl"
    lines = (json.dumps({"text": "é" * n}, ensure_ascii=False) for n in range(1, 20))
    path.write_text("\n".join(lines), encoding=encoding)
    assert texts_of(path, encoding=encoding)[0] == ["é" * n for n in range(1, 20)]
    resumes_after_each_block(path, encoding)
