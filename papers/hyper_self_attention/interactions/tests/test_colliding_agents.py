"""The study: what it learns at a small size, its command, its files, and a stop in between."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from based_jax import plot
from papers.hyper_self_attention.interactions import __main__ as program
from papers.hyper_self_attention.interactions import colliding_agents as agents

SMALL = dataclasses.replace(agents.SETTINGS["smoke"], tests=50)


@pytest.fixture
def small(monkeypatch):
    """The command's smallest scale, with fewer tests."""
    monkeypatch.setitem(agents.SETTINGS, "smoke", SMALL)
    return SMALL


def rows(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_the_paper_s_claims_at_a_small_size(tmp_path):
    """N 36, R 2, L 10, 4000 sequences: no error at any length, whatever the embeddings, start and law."""
    setting = dataclasses.replace(agents.SETTINGS["cpu"], steps=400, checkpoints=4, tests=20)
    data = agents.training_data(setting, seed=0)
    learned = {}
    for run in agents.RUNS:
        weights, path = agents.train(run, setting, data, 0, tmp_path / f"{run.name}.npz", lambda _: None)
        found = agents.examine(run, setting, weights, seed=0)
        assert path["history"][-1]["loss"] < 1e-12
        for name in ("test_mse", "test_mse_skewed"):
            assert max(found[name].values()) < 1e-10
        assert list(found["test_mse"]) == ["2", "5", "10", "20", "30", "40"]
        assert found["t_largest"] < 1e-6
        assert found["c_gap"] > 1e-2
        assert all(point["loss"] <= point["bound"] for point in path["history"])
        learned[run.name] = weights
    table = agents.RUNS[1].table(setting.size)
    # Gradient descent in another orthonormal basis takes the same steps; rounding grows a little over 400.
    turned = table @ learned["sinusoidal"].c @ table.T
    np.testing.assert_allclose(turned, learned["one_hot"].c, atol=1e-10)
    # From one value for all, w stays one value for all but for the data's differences, and C is the devised
    # one but for a factor: diagonal. From many values it is not.
    off = ~np.eye(setting.size, dtype=bool)
    assert np.abs(learned["sinusoidal"].c[off]).max() < 0.1 * np.abs(learned["unequal"].c[off]).max()


@pytest.mark.slow
def test_the_command_and_its_second_call(small, tmp_path, monkeypatch, capsys):
    out = tmp_path / "study"
    assert program.main(["--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [str(out / "results.jsonl"), str(out / "figure.png")]
    assert "training loss" in printed.err
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    found = rows(out)
    assert [row["run"] for row in found] == ["one_hot", "sinusoidal", "unequal"]
    assert all(max(row["test_mse"].values()) < 1e-12 for row in found)
    assert all(len(row["history"]) == small.checkpoints + 1 for row in found)

    monkeypatch.setattr(plot, "missing", lambda: "no figure")
    assert program.main(["--out", str(out)]) == 0
    assert "training loss" not in capsys.readouterr().err
    assert rows(out) == found
    with pytest.raises(ValueError, match="expected another directory"):
        program.main(["--out", str(out), "--seed", "1"])
    with pytest.raises(SystemExit):
        program.main(["--out", str(out), "--seed", "-1"])
    assert "seed = -1: expected at least 0" in capsys.readouterr().err
    (out / "study.json").write_text("{")
    with pytest.raises(ValueError, match=r"study\.json: expected JSON"):
        program.main(["--out", str(out)])


def test_a_stop_keeps_the_checkpoint_and_the_next_call_continues(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plot, "missing", lambda: "no figure")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert program.main(["--out", str(whole)]) == 0
    assert not (whole / "figure.png").exists()
    real = agents.flow

    def stopped(*arguments, **keywords):
        for number, point in enumerate(real(*arguments, **keywords)):
            if number == 2:
                raise KeyboardInterrupt
            yield point

    with monkeypatch.context() as patch:
        patch.setattr(agents, "flow", stopped)
        assert program.main(["--out", str(cut)]) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert not (cut / "results.jsonl").exists()
    assert program.main(["--out", str(cut)]) == 0
    for first, second in zip(rows(whole), rows(cut), strict=True):
        assert first.pop("seconds") > 0
        assert second.pop("seconds") > 0
        assert first == second


def test_the_results_that_are_kept_here():
    """The paper's setting: an error of at most 1e-6 at every length, for each run."""
    found = rows(Path(__file__).parents[1] / "results")
    setting = dataclasses.asdict(agents.SETTINGS["paper"])
    assert [row["run"] for row in found] == [run.name for run in agents.RUNS]
    for row in found:
        assert {name: row[name] for name in setting} == setting
        assert set(row["test_mse"]) == {str(length) for length in agents.LENGTHS}
        assert max(row["train_mse"], *row["test_mse"].values()) <= 1e-6
