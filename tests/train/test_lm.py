"""The training command end to end: files, resume after a signal, bad input; kills are in test_faults.py."""

import json
import re
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

import based_jax as bj
from tests.train.runs import command, flags, losses, sending, start, until
from train import lm
from train.bad_loss import BadLoss
from train.metrics import read_metrics
from train.run_directory import parse_run

STEPS = 24  # of the fixture `settings`


@pytest.fixture(scope="module")
def finished(one_layer, tmp_path_factory):
    """A run that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, lm.train(lm.LMConfig(workdir=workdir, **one_layer))


def test_a_run_directory_has_everything(finished):
    workdir, run = finished
    lines = read_metrics(workdir / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all({"loss", "grad_norm", "tokens_per_second", "learning_rate"} <= set(line) for line in lines)
    # The peak is 1e-3 of 10^12 operations a second: see `settings`.
    assert all(line["mfu"] == pytest.approx(1e3 * line["model_tflops_per_second"]) for line in lines)
    assert all(line["mfu"] > 0 for line in lines)
    assert [line["step"] for line in lines if "eval_loss" in line] == [12, 24]
    config = json.loads((workdir / "config.json").read_text())
    assert config["train"]["steps"] == STEPS
    assert bj.ModelConfig.from_dict(config["model"]) == run.model.config
    assert list((workdir / "events").iterdir())
    assert losses(workdir)[-1] < losses(workdir)[0] - 1
    assert run.metrics["eval_loss"] < losses(workdir)[0] - 1


def test_the_final_model_is_exported(finished):
    workdir, run = finished
    model, params = bj.load_pretrained(workdir / "model")
    assert model.config == run.model.config
    jax.tree.map(np.testing.assert_array_equal, params, run.outcome.state.params)


def test_a_run_that_was_stopped_resumes_bit_exactly(finished, one_layer, tmp_path):
    """SIGTERM; all losses are those of the run that was left alone."""
    process = start(command(one_layer, tmp_path, "--checkpoint-every", "0"))
    status, rest = until(6, process, sending(signal.SIGTERM))
    assert status == 128 + signal.SIGTERM, rest
    saved = re.search(r"SIGTERM: saved step (\d+) in (\S+)", " ".join(rest.split()))
    assert saved, rest
    assert Path(saved[2].rstrip(";")).is_dir()

    run = lm.train(parse_run(lm.LMConfig, ["--workdir", str(tmp_path), "--resume"], lm.PROG))
    assert losses(tmp_path) == losses(finished[0])
    jax.tree.map(np.testing.assert_array_equal, run.outcome.state.params, finished[1].outcome.state.params)


def test_a_non_finite_loss_stops_and_keeps_the_last_good_checkpoint(one_layer, tmp_path, monkeypatch):
    """The learning rate explodes at step 8: the checkpoint of step 5 stays, none is written after."""
    explode = lm.learning_rate_schedule

    def schedule(config, steps):
        base = explode(config, steps)
        return lambda step: jax.numpy.where(step >= 7, 1e38, base(step))

    monkeypatch.setattr(lm, "learning_rate_schedule", schedule)
    monkeypatch.setattr("train.optimizer.learning_rate_schedule", schedule)
    with pytest.raises(BadLoss, match=r"step \d+: loss .*Last good checkpoint: .*/5$"):
        lm.train(lm.LMConfig(workdir=tmp_path, **one_layer))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()] == ["5"]
    assert all(np.isfinite(losses(tmp_path)))


def test_an_old_run_is_not_overwritten(finished, one_layer):
    with pytest.raises(ValueError, match=r"workdir = .*--resume"):
        lm.train(lm.LMConfig(workdir=finished[0], **one_layer))


def test_resume_refuses_other_settings(finished, one_layer):
    with pytest.raises(ValueError, match="batch_size = 8: expected 4 as in the run"):
        lm.train(lm.LMConfig(workdir=finished[0], **{**one_layer, "batch_size": 8}, resume=True))


def test_resume_refuses_other_data(finished, one_layer, tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"another text {number} " * 20)
    config = json.loads((finished[0] / "config.json").read_text())
    copy = tmp_path / "run"
    (copy / "checkpoints" / "5").mkdir(parents=True)
    config["train"]["data"] = str(tmp_path)
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="the same training text"):
        lm.train(lm.LMConfig(workdir=copy, **{**one_layer, "data": str(tmp_path)}, resume=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--preset", "no-such"], "preset = 'no-such': expected"),
        (["--data", "/no/such/file"], "/no/such/file"),
        (["--batch-size", "0"], "batch_size = 0: expected at least 1"),
        (["--accumulate", "3"], "accumulate = 3: expected a divisor of batch_size = 4"),
        (["--mesh", "data=3"], "mesh = 'data=3': expected sizes whose product is"),
        (["--mesh", "rows=1"], "mesh = 'rows=1': expected axis=size pairs"),
        (["--mixer", "lstm"], "mixer = 'lstm': expected one of 'attention'"),
        (["--mixer", "mamba", "--mixer-layers", "1,9"], "layer = 9: expected 0 to 2"),
        (
            ["--mixer", "mamba", "--mixer-layers", "first"],
            "mixer_layers = 'first': expected numbers of layers",
        ),
        (["--mixer-layers", "1"], "mixer_layers = '1': expected --mixer beside it"),
        (["--length", "100000"], "100001"),
        (["--remat", "all"], "remat = 'all': expected one of 'none', 'dots', 'block'"),
        (["--scan-layers"], "scan_layers = True: expected False with the schedule CLS"),
        (["--peak-tflops", "0"], "peak_tflops = 0.0: expected above 0"),
        (["--recipe", "/no/such.toml"], "/no/such.toml"),
        (["--steps", "many"], "--steps"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_bad_input_is_one_line_and_status_2(change, message, settings, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        lm.command.run(lm.PROG, lambda: lm.main([*flags(settings, tmp_path), *change]))
    assert exit_.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("python -m train.lm: ")
    assert message in last


def test_help_explains_every_flag(capsys):
    with pytest.raises(SystemExit) as exit_:
        lm.main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--preset", "--data", "--steps", "--workdir", "--seed", "--batch-size", "--length",
                 "--log-every", "--checkpoint-every", "--mesh", "--resume", "--learning-rate"):  # fmt: skip
        assert flag in text
    assert "optimizer steps" in text


def test_bfloat16_trains(one_layer, tmp_path):
    run = lm.train(lm.LMConfig(workdir=tmp_path, **{**one_layer, "steps": 12}, dtype="bfloat16"))
    assert run.model.config.dtype == "bfloat16"
    assert losses(tmp_path)[-1] < losses(tmp_path)[0] - 0.5
