"""Figures of the slices: what they show, and from which files."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from based_jax import plot
from based_jax.data import PackedTokens
from based_jax.evals.bigrams.table import BigramTable
from based_jax.evals.perplexity import __main__ as perplexity
from based_jax.evals.perplexity import slice_figures
from based_jax.evals.perplexity.records import Records, make_records, write_records
from based_jax.evals.perplexity.scoring import Scores
from tests.commands import refused


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


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


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
    def message(figure):
        argv = ["--checkpoint", "r.parquet", "--figure", figure]
        return refused(perplexity.PROG, perplexity.main, argv, capsys)

    assert "a .png, .pdf, .svg file" in message(tmp_path / "f.jpg")
    assert "in an existing directory" in message(tmp_path / "no" / "f.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'based-jax[plot]'" in message(tmp_path / "f.png")
