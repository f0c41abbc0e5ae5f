"""The training command end to end: files, resume after a signal or a kill, bad input."""

import dataclasses
import json
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import based_jax as bj
from based_jax.data import load_documents, split_documents
from based_jax.data.documents import read_report
from based_jax.training.commands import lm
from based_jax.training.loop import BadLoss
from based_jax.training.low_rank import CHANGES, LowRank
from based_jax.training.optimizer import OptimizerConfig, make_optimizer
from based_jax.training.run.metrics import read_metrics
from tests.commands import run_here
from tests.training.runs import (
    command,
    copy_run,
    flags,
    losses,
    resume,
    resumes_bit_exactly,
    start,
    steps_saved,
    stop_at,
    until,
)

STEPS = 24  # of the fixture `settings`


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
    assert [file.outcome for file in read_report(workdir / "report.jsonl")] == ["kept"] * 40
    assert losses(workdir)[-1] < losses(workdir)[0] - 1
    assert run.metrics["eval_loss"] < losses(workdir)[0] - 1
    model, params = bj.load_pretrained(workdir / "model")
    assert model.config == run.model.config
    chex.assert_trees_all_equal(params, run.outcome.state.params)


def test_a_run_that_was_stopped_resumes_bit_exactly(finished, one_layer, tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        stop_at(6, patch)
        often = {"checkpoint_every": 0, "eval_every": 9}
        run = lm.train(lm.LMConfig(workdir=tmp_path, **{**one_layer, **often}))
    assert run.outcome.stopped_by == signal.SIGTERM
    report = " ".join(capsys.readouterr().err.split())
    saved = re.search(r"SIGTERM: saved step (\d+) in (\S+);", report)
    assert saved, report
    assert Path(saved[2]).is_dir()
    with pytest.MonkeyPatch.context() as patch:
        stop_at(STEPS - 1, patch)  # in the last step, whose held-out loss is still measured
        resumes_bit_exactly(tmp_path, finished)
    ends = [read_metrics(path / "metrics.jsonl")[-1] for path in (tmp_path, finished[0])]
    assert ends[0]["eval_loss"] == ends[1]["eval_loss"]


@pytest.mark.slow
def test_a_run_that_was_killed_resumes_bit_exactly(finished, one_layer, tmp_path):
    """At a moment after step 4, when the save of step 2 is complete: that of step 3 waited for it."""
    often = {**one_layer, "eval_every": 0, "checkpoint_every": 1}
    process = start(command(often, tmp_path))
    status, _ = until(4, process, lambda process: (time.sleep(random.uniform(0, 0.1)), process.kill()))
    assert status == -signal.SIGKILL
    assert steps_saved(tmp_path)[-1] >= 2
    resumes_bit_exactly(tmp_path, finished)


@pytest.mark.release
@pytest.mark.parametrize(("eval_every", "loss"), [(12, r"\d+: loss"), (8, "8: held out loss nan")])
def test_a_non_finite_loss_stops_and_keeps_the_last_good_checkpoint(
    one_layer, eval_every, loss, tmp_path, monkeypatch
):
    """The learning rate is NaN from step 8 on: the checkpoint of step 5 stays, none is written after."""
    explode = lm.learning_rate_schedule

    def schedule(config, steps):
        base = explode(config, steps)
        return lambda step: jax.numpy.where(step >= 7, jax.numpy.nan, base(step))

    monkeypatch.setattr(lm, "learning_rate_schedule", schedule)
    monkeypatch.setattr(lm, "make_optimizer", make_optimizer)  # without the memory of `traced_once`
    monkeypatch.setattr("based_jax.training.optimizer.learning_rate_schedule", schedule)
    with pytest.raises(BadLoss, match=rf"step {loss}.*Last good checkpoint: .*/5$"):
        lm.train(lm.LMConfig(workdir=tmp_path, **{**one_layer, "eval_every": eval_every}))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()] == ["5"]
    assert all(np.isfinite(losses(tmp_path)))


def test_a_directory_of_a_run_is_kept(finished, one_layer):
    """From a run without --resume, and from one with other settings."""
    with pytest.raises(ValueError, match=r"workdir = .*--resume"):
        lm.train(lm.LMConfig(workdir=finished[0], **one_layer))
    other = {"optimizer": dataclasses.replace(one_layer["optimizer"], beta2=0.9)}
    with pytest.raises(ValueError, match=r"^beta2 = 0.9: expected 0.95 as in the run"):
        lm.train(lm.LMConfig(workdir=finished[0], **{**one_layer, **other}, resume=True))


def test_held_out_text_that_is_gone_is_refused(finished, one_layer, text, tmp_path):
    """The training text is as it was."""
    data = shutil.copytree(text, tmp_path / "data")
    documents = load_documents(str(data)).documents
    _, held_out = split_documents(documents, fraction=one_layer["held_out"], max_bytes=2**18)
    copy = copy_run(finished[0], tmp_path / "run", data=str(data))
    (data / held_out[0].name).unlink()
    with pytest.raises(ValueError, match=r"the same held-out text as in the run .* but it has changed"):
        lm.train(lm.LMConfig(workdir=copy, **{**one_layer, "data": str(data)}, resume=True))


@pytest.mark.release
def test_more_steps_hold_the_final_rate(finished, tmp_path):
    copy = copy_run(finished[0], tmp_path / "run")
    assert lm.main(["--workdir", str(copy), "--resume", "--steps", str(STEPS + 2)]) == 0
    lines = read_metrics(copy / "metrics.jsonl")
    assert losses(copy)[:STEPS] == losses(finished[0])
    assert [line["learning_rate"] for line in lines[STEPS:]] == pytest.approx([1e-3, 1e-3])
    saved = json.loads((copy / "config.json").read_text())["train"]
    assert (saved["steps"], saved["optimizer"]["schedule_steps"]) == (STEPS + 2, STEPS)
    with pytest.raises(ValueError, match="steps = 20: expected at least 26, those of the run so far"):
        resume(copy, "--steps", "20")


def test_a_run_begins_with_the_weights_of_another(finished, one_layer, tmp_path, monkeypatch):
    """The first loss is that of the weights, and the optimizer is new."""
    settings = {**one_layer, "preset": None, "init_from": str(finished[0]), "checkpoint_every": 0}
    stop_at(1, monkeypatch)
    run = lm.train(lm.LMConfig(workdir=tmp_path / "a", **settings))
    assert run.model.config == finished[1].model.config
    assert losses(tmp_path / "a")[0] < losses(finished[0])[0] - 1
    assert losses(tmp_path / "a")[0] == pytest.approx(finished[1].metrics["eval_loss"], abs=1)


@pytest.mark.release
def test_low_rank_changes_train_and_are_merged(finished, one_layer, tmp_path):
    """The loss falls from where the checkpoint left it; the exported model has the changes in its maps."""
    settings = {**one_layer, "preset": None, "steps": 30, "log_every": 30, "checkpoint_every": 0}
    settings |= {"init_from": str(finished[0]), "lora": 2, "optimizer": OptimizerConfig(learning_rate=0.05)}
    run = lm.train(lm.LMConfig(workdir=tmp_path, **settings))
    begin = finished[1].metrics["eval_loss"]
    assert run.metrics["eval_loss"] < begin - 0.005  # of 448 parameters
    params = run.outcome.state.params
    kept, before = params["params"], finished[1].outcome.state.params["params"]
    chex.assert_trees_all_equal(kept, before)
    _, exported = bj.load_pretrained(tmp_path / "model")
    merged = LowRank(run.model, 2).merged(params)
    # One is compiled and one is not: a product may be rounded before it is added.
    chex.assert_trees_all_close(exported, merged, rtol=1e-5, atol=1e-7)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), exported["params"], before)
    names = {path for path, moved in flatten_dict(changed, sep="/").items() if moved}
    assert names == set(params[CHANGES])
    assert {name.split("/")[0] for name in names} == {"layers_0"}
    moments = jax.tree.leaves(run.outcome.state.opt_state)
    assert sum(leaf.size for leaf in moments) < sum(leaf.size for leaf in jax.tree.leaves(before))


@pytest.mark.slow
def test_embeddings_and_norms_train_with_low_rank_changes(finished, one_layer, tmp_path):
    """Only these move and have moments, a resumed run goes on with them, and the exported model has them."""
    settings = {**one_layer, "preset": None, "steps": 2, "eval_every": 0, "checkpoint_every": 0, "lora": 2}
    settings |= {"init_from": str(finished[0]), "train_embeddings": True, "train_norms": True}
    lm.train(lm.LMConfig(workdir=tmp_path, **settings))
    with pytest.raises(ValueError, match="train_norms = False: expected True as in the run"):
        resume(tmp_path, "--steps", "3", "--no-train-norms")
    run = resume(tmp_path, "--steps", "3")
    params, opt_state = run.outcome.state.params, run.outcome.state.opt_state
    before = flatten_dict(finished[1].outcome.state.params["params"], sep="/")
    after: dict[str, Any] = dict(flatten_dict(params["params"], sep="/"))
    moved = {name for name, leaf in after.items() if not np.array_equal(leaf, before[name])}
    assert moved == {"embedding", "final_norm/scale", "layers_0/norm1/scale", "layers_0/norm2/scale"}
    trained = sum(after[name].size for name in moved) + sum(map(jnp.size, jax.tree.leaves(params[CHANGES])))
    assert sum(leaf.size for leaf in jax.tree.leaves(opt_state) if leaf.ndim) == 2 * trained
    _, exported = bj.load_pretrained(tmp_path / "model")
    chex.assert_trees_all_equal(exported["params"]["embedding"], params["params"]["embedding"])


@pytest.mark.release
def test_what_a_checkpoint_lacks_is_named(finished, one_layer, tmp_path):
    """Two layers for one, and another vocabulary."""
    config = finished[1].model.config
    (tmp_path / "two.json").write_text(config.replace(schedule="LL").to_json())
    settings = {**one_layer, "preset": str(tmp_path / "two.json"), "init_from": str(finished[0])}
    parts = lm.assemble(lm.LMConfig(workdir=tmp_path, **settings))
    weights = parts.summary["weights"]
    assert weights.startswith(f"{finished[0]}: 10 of 18 arrays; fresh: layers_1/")
    state = parts.programs.init(jax.random.key(7))
    taken, own = state.params["params"], finished[1].outcome.state.params["params"]
    chex.assert_trees_all_equal(taken["layers_0"], own["layers_0"])

    for rank, message in ((2, "a checkpoint with all of the model's arrays"), (99, "below the rank")):
        with pytest.raises(ValueError, match=f"lora = {rank}: expected {message}"):
            lm.assemble(lm.LMConfig(workdir=tmp_path, lora=rank, **settings))

    (tmp_path / "wide.json").write_text(config.replace(d_model=8).to_json())
    with pytest.raises(ValueError, match=r"init_from = .*expected weights of which at least one array fits"):
        lm.assemble(lm.LMConfig(workdir=tmp_path, **{**settings, "preset": str(tmp_path / "wide.json")}))


REFUSED = {
    "--init-from /no/such/run": "/no/such/run: expected a directory with config.json and weights",
    "--include *.rst --data stdlib": "include = '*.rst': expected a file, a directory or a glob",
    "--preset no-such": "preset = 'no-such': expected",
    "--data /no/such/file": "/no/such/file",
    "--batch-size 0": "batch_size = 0: expected at least 1",
    f"--length {10**30}": f"length = {10**30}: expected at most {2**31 - 1}",
    f"--steps {10**30}": f"steps = {10**30}: expected at most {2**31 - 1}",
    f"--seed {2**64}": f"seed = {2**64}: expected at most {2**32 - 1}",
    "--accumulate 3": "accumulate = 3: expected a divisor of batch_size = 4",
    "--mesh data=3": "mesh = 'data=3': expected sizes whose product is",
    "--mesh rows=1": "mesh = 'rows=1': expected axis=size pairs",
    "--mixer lstm": "mixer = 'lstm': expected one of 'attention'",
    "--mixer mamba --mixer-layers 1,9": "layer = 9: expected 0 to 2",
    "--mixer mamba --mixer-layers first": "mixer_layers = 'first': expected numbers of layers",
    "--mixer-layers 1": "mixer_layers = '1': expected --mixer to be given as well",
    "--mixer mamba:d_sate=8": "option of mamba = 'd_sate': expected one of",
    "--mixer mamba:d_state=no": "d_state = 'no': expected",
    "--train-embeddings": "train_embeddings = True: expected --lora to be given as well; without it every",
    "--train-norms": "train_norms = True: expected --lora to be given as well; without it every",
    "--length 100000": "100001",
    "--remat all": "remat = 'all': expected one of 'none', 'dots', 'block'",
    "--scan-layers": "scan_layers = True: expected False with the schedule CLS",
    "--peak-tflops 0": "peak_tflops = 0.0: expected above 0",
    "--recipe /no/such.toml": "/no/such.toml",
    "--steps many": "--steps",
    "--no-such-flag": "--no-such-flag",
    "--step 3": "Perhaps you meant: --steps",
}


@pytest.mark.parametrize("change", REFUSED)
def test_bad_input_is_one_line_and_status_2(change, settings, tmp_path, capsys):
    ended = run_here(lm.PROG, lm.main, [*flags(settings, tmp_path), *change.split()], capsys)
    assert ended.status == 2
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("based-jax train lm: ")
    assert REFUSED[change] in last


def test_a_dry_run_reports_what_stops_the_run_and_goes_on(settings, tmp_path, monkeypatch, capsys):
    for name in ("dry_run", "use_virtual_devices"):
        monkeypatch.setattr(lm, name, lambda *args, name=name, **options: print(name))
    (tmp_path / "a.jsonl").write_text('{"title": "x"}\n')
    argv = [*flags(settings, tmp_path / "run"), "--data", str(tmp_path / "a.jsonl"), "--dry-run"]
    assert lm.main(argv) == 2
    first, last = capsys.readouterr().out.split("stops it")
    assert "a.jsonl: 15 bytes, 1 no string field 'text'" in first
    assert "its string fields are title" in last
    assert last.rstrip().endswith("dry_run")
    assert lm.main([*argv, "--text-field", "title"]) == 2  # too little text for two sides
    assert "stops it" in capsys.readouterr().out


@pytest.mark.slow
def test_bfloat16_trains(one_layer, tmp_path):
    run = lm.train(lm.LMConfig(workdir=tmp_path, **{**one_layer, "steps": 12}, dtype="bfloat16"))
    assert run.model.config.dtype == "bfloat16"
    assert losses(tmp_path)[-1] < losses(tmp_path)[0] - 0.5


PEAKS = {
    "NVIDIA H200": 989,
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA B200": 2250,
    "NVIDIA GB200": None,
    "TPU v4": 275,
    "TPU v4 lite": 138,
    "TPU v5": 459,
    "TPU v6 lite": 918,
    "cpu": None,
}


def test_peaks_by_kind_of_device():
    assert {kind: lm.peak_tflops(kind) for kind in PEAKS} == PEAKS
