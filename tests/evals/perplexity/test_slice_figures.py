"""Figures of the slices: what they show, from which files, and the bigrams that are left out."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from based_jax import command, plot
from based_jax.data import ByteTokenizer, Document, PackedTokens
from based_jax.evals.bigrams.table import BigramTable
from based_jax.evals.distances import __main__ as distances
from based_jax.evals.distances.stop_words import read_words, stop_tokens
from based_jax.evals.perplexity import __main__ as perplexity
from based_jax.evals.perplexity import slice_figures
from based_jax.evals.perplexity.records import Records, make_records, write_records
from based_jax.evals.perplexity.scoring import Scores
from based_jax.plot import Bars

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


def test_bigrams_with_a_stop_token_are_no_repeats():
    tokenizer = ByteTokenizer()
    packed = PackedTokens.from_documents([Document("", TEXT)], tokenizer)
    left_out = stop_tokens(tokenizer, {"a", "t"})
    found = distances.histogram(packed, 20, left_out=left_out)
    stream = packed.tokens.tolist()
    repeats = 0
    for position in range(len(stream) - 1):
        pair = stream[position : position + 2]
        repeated = any(stream[i : i + 2] == pair for i in range(position // 20 * 20, position))
        repeats += repeated and not any(token < 256 and chr(token) in "aAtT,.!" for token in pair)
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

    monkeypatch.setattr(slice_figures.plot, "draw", record)
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
    flags = [
        "--length",
        40,
        "--counts",
        tmp_path / "counts",
        "--max-count",
        4,
        "--stop-words",
        tmp_path / "stop",
    ]

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


def records(seed: int, counts: bool) -> Records:
    rng = np.random.default_rng(seed)
    tokens = np.random.default_rng(0).integers(0, 6, 200, dtype=np.uint16)
    loss = rng.exponential(2, 199).astype(np.float32)
    packed = PackedTokens(tokens, np.array([0]), 0)
    info = {"checkpoint": f"runs/model-{seed}", "data": "text", "tokenizer": "byte"}
    made = make_records(packed, Scores(loss, tokens[1:].astype(np.int32), loss), 50, True, info)
    return made.with_counts(BigramTable.of_stream(tokens, 257)) if counts else made


def test_losses_of_several_models(tmp_path, drawn):
    """The reference needs no counts of its own: its tokens are the model's."""
    paths = [tmp_path / f"{seed}.parquet" for seed in range(3)]
    for seed, path in enumerate(paths):
        write_records(path, records(seed, counts=seed != 1))
    third = ["--checkpoint", paths[2], "--json", tmp_path / "2.json"]
    assert perplexity.main([str(arg) for arg in third]) == 0
    flags = ["--checkpoint", paths[0], "--reference", paths[1], "--figure", tmp_path / "f.png"]
    assert perplexity.main([str(arg) for arg in [*flags, "--beside", tmp_path / "2.json"]]) == 0
    assert is_png(tmp_path / "f.png")

    counts = records(0, True).count
    assert counts is not None
    every, repeats, distance = drawn
    for panel, chosen in ((every, np.ones(199, bool)), (repeats, records(0, True).distance > 0)):
        assert [line.family for line in panel.lines] == [f"runs/model-{seed}" for seed in range(3)]
        for seed, line in enumerate(panel.lines):
            for x, y in line.points:
                low = x - 1
                inside = chosen & (counts >= low) & (counts <= max(2 * low - 1, low))
                assert math.isclose(y, records(seed, False).loss[inside].mean(dtype=float), rel_tol=1e-6)
    assert [line.family for line in distance.lines] == ["all repeats", "AR hits"]


def test_without_counts_there_are_distances_only(tmp_path, drawn):
    write_records(tmp_path / "r.parquet", records(0, False))
    flags = ["--checkpoint", tmp_path / "r.parquet", "--figure", tmp_path / "f.svg"]
    assert perplexity.main([str(flag) for flag in flags]) == 0
    assert [bool(panel.lines) for panel in drawn] == [False, False, True]
    assert "<svg" in (tmp_path / "f.svg").read_text()


def test_figures_that_cannot_be_drawn(tmp_path, monkeypatch, capsys):
    argv = ["--data", "stdlib", "--figure"]
    assert "a .png, .pdf, .svg file" in fails(distances, [*argv, tmp_path / "f.jpg"], capsys)
    assert "in an existing directory" in fails(distances, [*argv, tmp_path / "no" / "f.png"], capsys)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'based-jax[plot]'" in fails(distances, [*argv, tmp_path / "f.png"], capsys)


def test_equal_names_are_numbered(tmp_path, drawn):
    result = distances.histogram(PackedTokens.from_documents([Document("", TEXT)], ByteTokenizer()), 40)
    slice_figures.draw_distances(tmp_path / "f.png", [{"data": "a/b/c", **result}] * 2)
    assert [line.family for line in drawn[-1].lines] == ["b/c", "b/c (2)"]
    assert list(drawn[0].values) == ["b/c", "b/c (2)"]
    assert len(drawn) == 2  # without counts the hits are the repeats, which are shown once
