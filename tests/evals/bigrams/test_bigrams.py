"""Counting bigrams: exact against a dictionary, resumable."""

import json
import signal
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from based_jax.data import ByteTokenizer, Document, PackedTokens
from based_jax.evals.bigrams import __main__ as bigrams
from based_jax.evals.bigrams.table import BigramTable, stream_keys
from tests.commands import refused, run_here

SEED, SIZE = st.integers(0, 2**32 - 1), st.integers(0, 1500)
VOCAB = st.sampled_from([1, 3, 300, 1 << 17])


def stream(seed: int, size: int, vocab_size: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab_size, size, dtype=np.int32)


def as_dict(table: BigramTable) -> dict[tuple[int, int], int]:
    keys = table.keys.tolist()
    return {divmod(key, 1 << 32): count for key, count in zip(keys, table.counts.tolist(), strict=True)}


def pairs(*streams: np.ndarray) -> Counter:
    return sum((Counter(zip(s[:-1].tolist(), s[1:].tolist(), strict=True)) for s in streams), Counter())


@given(SEED, st.lists(SIZE, min_size=1, max_size=5), VOCAB)
def test_tables_agree_with_a_dictionary(seed, sizes, vocab_size):
    streams = [stream(seed + i, size, vocab_size) for i, size in enumerate(sizes)]
    table, expected = BigramTable.of_stream(streams[0], vocab_size), pairs(*streams)
    for tokens in streams[1:]:
        table = table.add(stream_keys(tokens, vocab_size))
    assert as_dict(table) == expected
    assert (table.tokens, table.vocab_size) == (sum(expected.values()), vocab_size)
    first, second = stream(seed + 9, 200, vocab_size), stream(seed + 8, 200, vocab_size)
    known = np.resize(streams[0], 51) if sizes[0] else np.zeros(51, int)
    first[:50], second[:50] = known[:-1], known[1:]
    found = table.lookup(first.reshape(2, 100), second.reshape(2, 100))
    expected_counts = [expected[pair] for pair in zip(first.tolist(), second.tolist(), strict=True)]
    assert found.ravel().tolist() == expected_counts


def test_a_count_file_is_a_safetensors_file_with_metadata(tmp_path):
    table = BigramTable.of_stream(np.array([5, 7, 5, 7, 0]), 8, 'a "source"')
    table.save(tmp_path / "counts")
    assert [file.name for file in tmp_path.iterdir()] == ["counts"]
    tensors = load_file(tmp_path / "counts")
    assert tensors["keys"].dtype == tensors["counts"].dtype == np.uint64
    assert tensors["keys"].tolist() == [5 << 32 | 7, 7 << 32, 7 << 32 | 5]
    assert tensors["counts"].tolist() == [2, 1, 1]
    opened = BigramTable.load(tmp_path / "counts")
    assert (opened.vocab_size, opened.tokens, opened.source) == (8, 4, 'a "source"')


def test_what_is_no_count_file(tmp_path):
    path = tmp_path / "counts"
    good = BigramTable.of_stream(np.array([5, 7, 5, 7, 0]), 8)
    good.save(path)
    content = path.read_bytes()
    damaged = {
        "IncompleteMetadata|file size|not fully covered": content[:-8],
        "increasing": content.replace(good.keys.tobytes(), good.keys[::-1].tobytes()),
        "sum of the counts": content.replace(good.counts.tobytes(), bytes(24)),
        "format": content.replace(b"based_jax.bigrams", b"somebody.bigrams_"),
        "vocab_size": content.replace(b'"vocab_size":"8"', b'"vocab_size":"2"'),
        "header": b"\x80\x04" + content,
    }
    for reason, bad in damaged.items():
        assert bad != content, reason
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=f"(?si)counts = .*expected a count file of bigrams.*({reason})"):
            BigramTable.load(path)
    with pytest.raises(ValueError, match=r"tokens = \(3, 10\): expected in \[0, 10\)"):
        BigramTable.of_stream(np.array([3, 10]), 10)


TEXTS = {"a.txt": "abracadabra", "b.txt": "na\u00efve banana", "c.jsonl": ["one", "two two", "", "three"]}


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in TEXTS.items():
        lines = text if isinstance(text, str) else "\n".join(json.dumps({"text": line}) for line in text)
        (folder / name).write_text(lines, encoding="utf-8")
    return folder


def expected_counts() -> dict[tuple[int, int], int]:
    texts = [
        text for entry in TEXTS.values() for text in ([entry] if isinstance(entry, str) else entry) if text
    ]
    packed = PackedTokens.from_documents([Document("", text) for text in texts], ByteTokenizer())
    return pairs(packed.tokens)


def test_a_signal_saves_and_the_command_goes_on(corpus, tmp_path, monkeypatch, capsys):
    out = tmp_path / "counts"
    encode = ByteTokenizer.encode

    def interrupt(tokenizer, text):
        signal.raise_signal(signal.SIGINT)
        return encode(tokenizer, text)

    monkeypatch.setattr(ByteTokenizer, "encode", interrupt)
    monkeypatch.setattr(bigrams, "spelling", lambda tokenizer: [])  # the next encoded text is a document
    flags = ("--data", corpus, "--out", out)
    for _ in range(5):  # documents
        ended = run_here(bigrams.PROG, bigrams.main, flags, capsys)
        assert ended.status == 130
        assert f"resume from {out}.partial" in ended.err
        assert not out.exists()
    monkeypatch.undo()
    assert "the interrupted count in" in refused(bigrams.PROG, bigrams.main, flags, capsys)  # other tokens
    monkeypatch.setattr(bigrams, "spelling", lambda tokenizer: [])
    (corpus / "a.txt").rename(tmp_path / "moved")
    assert "the interrupted count in" in refused(bigrams.PROG, bigrams.main, flags, capsys)
    (tmp_path / "moved").rename(corpus / "a.txt")
    assert run_here(bigrams.PROG, bigrams.main, flags, capsys).status == 0
    assert as_dict(BigramTable.load(out)) == expected_counts()
    assert not out.with_name("counts.partial").exists()


def test_the_command_counts_all_or_a_split(corpus, tmp_path, capsys):
    def counted(*argv):
        ended = run_here(
            bigrams.PROG, bigrams.main, (*argv, "--data", corpus, "--out", tmp_path / argv[-1]), capsys
        )
        assert ended.status == 0
        return ended.out, Counter(as_dict(BigramTable.load(tmp_path / argv[-1])))

    said, found = counted("--part", "all")
    assert "44 tokens" in said
    assert found == expected_counts()
    (_, train), (_, held_out) = (counted("--held-out", 0.5, "--part", side) for side in ("train", "held_out"))
    assert train
    assert held_out
    assert train + held_out == expected_counts()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--data", ".", "--out", "there"), "expected a file that does not exist yet"),
        (("--out", "none"), "data = None: expected the text"),
        (("--data", "nothing", "--out", "none"), "nothing"),
    ],
)
def test_wrong_flags_are_one_line(tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()
    assert message in refused(bigrams.PROG, bigrams.main, flags, capsys)
