"""Distances of repeats: bigrams that are left out, figures of several texts, and counts by definition."""

import itertools
import json
import math
from pathlib import Path

import pytest

from based_jax import command, plot
from based_jax.data import ByteTokenizer, Document, PackedTokens
from based_jax.evals.bigrams.table import BigramTable
from based_jax.plot import Bars
from papers.zoology import distances
from papers.zoology.distances import read_words, stop_tokens

TEXT = "the cat, the dog. the cat, a dog! abc abc abc "


class Words:
    """A tokenizer with a word or a mark per token, with a leading space as in GPT-2's."""

    name = "words"
    texts = (" The", " cat", ",", " \u201c?!\u201d", " dog", "\n", "a.b", "")
    vocab_size = len(texts)
    eot = 7

    def encode(self, text):
        raise NotImplementedError

    def decode(self, ids):
        return "".join(self.texts[int(token)] for token in ids)

    def save(self, directory):
        raise NotImplementedError


def test_stop_words_and_punctuation():
    found = stop_tokens(Words(), {"the", "dog"})
    assert found.tolist() == [True, False, True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "expected a file with a word per line"), (b"\n \n", "at least one word"), (b"\xff", "UTF-8")],
)
def test_files_without_words(content, message, tmp_path):
    path = tmp_path / "words"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        read_words(path)


def recount(tokens, length, marks="", most=None):
    """Repeats within sequences without these characters, and those of bigrams that are rare in all tokens."""
    pairs, repeats, hits = [*itertools.pairwise(tokens)], 0, 0
    for position, pair in enumerate(pairs):
        repeated = pair in pairs[position // length * length : position]
        repeated = repeated and not any(token < 256 and chr(token) in marks for token in pair)
        repeats, hits = repeats + repeated, hits + (repeated and (most is None or pairs.count(pair) <= most))
    return repeats, hits


def test_bigrams_with_a_stop_token_are_no_repeats():
    tokenizer = ByteTokenizer()
    packed = PackedTokens.from_documents([Document("", TEXT)], tokenizer)
    found = distances.histogram(packed, 20, left_out=stop_tokens(tokenizer, {"a", "t"}))
    repeats, _ = recount(packed.tokens.tolist(), 20, "aAtT,.!")
    every = distances.histogram(packed, 20)
    assert 0 < repeats == found["repeats_per_sequence"] * found["sequences"]
    assert found["repeats_per_sequence"] < every["repeats_per_sequence"]
    assert sum(entry["repeats"] for entry in found["bins"]) == repeats


@pytest.fixture
def drawn(monkeypatch):
    """Panels that are drawn, and drawn they are."""
    panels = []
    draw = plot.draw

    def record(title, facts, given, path, columns=None):
        panels.extend(given)
        draw(title, facts, given, path, columns)

    monkeypatch.setattr(plot, "draw", record)
    return panels


def fails(module, argv, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        command.run(module.PROG, lambda: module.main([str(arg) for arg in argv]))
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_distances_of_several_texts(tmp_path, drawn, capsys):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(TEXT * (2 if name == "one" else 3))
    (tmp_path / "stop").write_text("t\n")
    packed = PackedTokens.from_documents([Document("", TEXT * 2)], ByteTokenizer())
    BigramTable.of_stream(packed.tokens, 257).save(tmp_path / "counts")
    flags = ["--length", 40, "--counts", tmp_path / "counts"]
    flags += ["--max-count", 4, "--stop-words", tmp_path / "stop"]

    def run(name, *more):
        argv = ["--data", tmp_path / f"{name}.txt", *flags, "--json", tmp_path / f"{name}.json", *more]
        assert distances.main([str(arg) for arg in argv]) == 0
        return json.loads((tmp_path / f"{name}.json").read_text())

    two = run("two")
    one = run("one", "--figure", tmp_path / "f.png", "--beside", tmp_path / "two.json")
    assert is_png(tmp_path / "f.png")
    bars, lines = drawn[:2], drawn[2:]
    for panel, kind in zip(bars, ("repeats", "hits"), strict=True):
        assert isinstance(panel, Bars)
        assert list(panel.values.values()) == [result[f"{kind}_per_sequence"] for result in (one, two)]
    for panel, kind in zip(lines, ("repeats", "hits"), strict=True):
        assert [line.family.rpartition("/")[2] for line in panel.lines] == ["one.txt", "two.txt"]
        for line, result in zip(panel.lines, (one, two), strict=True):
            widths = {entry["low"]: entry["high"] - entry["low"] + 1 for entry in result["bins"]}
            assert math.isclose(sum(y * widths[x] for x, y in line.points), 1)
            total = sum(entry[kind] for entry in result["bins"])
            first = next(entry for entry in result["bins"] if entry[kind])
            assert line.points[0] == (first["low"], first[kind] / total / widths[first["low"]])

    argv = ["--data", tmp_path / "one.txt", "--figure", tmp_path / "f.png", "--beside"]
    assert "expected a file of --json" in fails(distances, [*argv, tmp_path / "none.json"], capsys)
    (tmp_path / "other.json").write_text('{"slices": {}}')
    assert "--json of the same command" in fails(distances, [*argv, tmp_path / "other.json"], capsys)
    assert "beside" in fails(distances, [*argv[:2], "--beside", tmp_path / "one.json"], capsys)


def test_equal_names_are_numbered(tmp_path, drawn):
    result = distances.histogram(PackedTokens.from_documents([Document("", TEXT)], ByteTokenizer()), 40)
    distances.draw_distances(tmp_path / "f.png", [{"data": "a/b/c", **result}] * 2)
    assert [line.family for line in drawn[-1].lines] == ["b/c", "b/c (2)"]
    assert list(drawn[0].values) == ["b/c", "b/c (2)"]
    assert len(drawn) == 2  # without counts the hits are the repeats, which are shown once


def test_the_distances_command_counts_the_repeats_of_a_text(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("abab xyz abab " * 9)
    packed = PackedTokens.from_documents([Document("", text.read_text())], ByteTokenizer())
    BigramTable.of_stream(packed.tokens, 257).save(tmp_path / "counts")
    flags = ["--data", text, "--length", 40, "--counts", tmp_path / "counts", "--max-count", 9]
    assert distances.main([str(flag) for flag in [*flags, "--json", tmp_path / "out.json"]]) == 0
    assert "127 tokens in 4 sequences" in capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    repeats, hits = recount(packed.tokens.tolist(), 40, most=9)
    assert 0 < hits < repeats
    assert (found["repeats_per_sequence"], found["hits_per_sequence"]) == (repeats / 4, hits / 4)
    assert sum(entry["hits"] for entry in found["bins"]) == hits
