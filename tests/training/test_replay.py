"""Replay of single steps: the run's numbers bit for bit, from the nearest checkpoint, changing nothing."""

import json
import math
import re
import shutil

import pytest

from based_jax import command
from based_jax.training.bad_loss import BadLoss, BadLossConfig
from based_jax.training.commands import lm, replay
from based_jax.training.commands.replay import ReplayConfig
from based_jax.training.optimizer import OptimizerConfig


@pytest.fixture
def run(finished):
    return finished[0]


def contents(workdir):
    return {path: path.stat().st_mtime_ns for path in sorted(workdir.rglob("*"))}


@pytest.mark.parametrize(
    ("step", "start"),
    [
        pytest.param(3, 0, marks=pytest.mark.slow),
        pytest.param(20, 15, marks=pytest.mark.release),
        pytest.param(22, 20, marks=pytest.mark.slow),
    ],
)
def test_a_step_again(step, start, run):
    before = contents(run)
    found = replay.replay(ReplayConfig(run, step))
    assert found.start == start
    assert found.logged is not None
    assert found.logged["step"] == step
    assert found.differences == {}
    assert contents(run) == before
    assert all(norm >= 0 and 0 < change < 10 for _, norm, change in found.norms.values())
    assert found.norms["embedding"][0] == (264, 16)
    assert len(found.texts) == 2
    assert all("return x" in text for text in found.texts)


def test_the_command_says_what_it_found(run, capsys):
    assert replay.main(["--workdir", str(run), "--step", "24", "--rows", "1"]) == 0
    said = capsys.readouterr().out
    assert "step 24, replayed from checkpoint 20" in said
    assert re.search(r"layers_0/mlp/in_proj/kernel\W+\(16, 2, 32\)", said)
    assert "those of metrics.jsonl, bit for bit" in said
    assert said.count("row ") == 1


def test_other_numbers_are_status_1(run, tmp_path, capsys):
    path = shutil.copytree(run, tmp_path / "run") / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[21]["loss"] += 1e-7
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert replay.main(["--workdir", str(path.parent), "--step", "22"]) == 1
    error = capsys.readouterr().err
    assert re.search(r"^based-jax train replay: loss was [\d.]+ and is [\d.]+ now$", error, re.MULTILINE)


@pytest.mark.release
def test_the_step_that_went_wrong(one_layer, tmp_path):
    """Steps 2 to 4 have no finite gradient, which metrics.jsonl has as null, and step 5 ends the run."""
    settings = {**one_layer, "eval_every": 0, "optimizer": OptimizerConfig(learning_rate=1e38, warmup=0.0)}
    with pytest.raises(BadLoss, match=r"step 5: .* gradient norm nan; stopped after 4 in a row"):
        lm.train(lm.LMConfig(tmp_path, bad_losses=BadLossConfig("skip"), **settings))
    found = replay.replay(ReplayConfig(tmp_path, 3))
    assert found.logged is not None
    assert found.logged["grad_norm"] is None
    assert math.isnan(found.metrics["grad_norm"])
    assert found.differences == {}
    assert {change for _, _, change in found.norms.values()} == {0.0}
    assert replay.replay(ReplayConfig(tmp_path, 5)).logged is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "0"], "step = 0: expected at least 1"),
        (["--step", "25"], "step = 25: expected at most the run's 24"),
        (["--step", "5", "--rows", "-1"], "rows = -1: expected at least 0"),
        (["--step", "5", "--workdir", "/no/such"], "workdir = '/no/such': expected a run's directory"),
    ],
)
def test_bad_input(words, message, run, capsys):
    with pytest.raises(SystemExit) as exit_:
        command.run(replay.PROG, lambda: replay.main(["--workdir", str(run), *words]))
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]
