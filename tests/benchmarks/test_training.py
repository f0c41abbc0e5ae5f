"""`python -m benchmarks train` and `mqar` on tiny sizes: JSON, tables, the same numbers in torch."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import based_jax as bj
from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.models import mqar, train, training
from benchmarks.models.training import AGREEMENT

SIZES = {
    "train": {"d_model": 64, "vocab_size": 64, "length": 64, "batch_size": 2, "steps": 2},
    "mqar": {"d_model": 8, "vocab_size": 32, "length": 16, "pairs": 2, "batch_size": 4, "steps": 2},
}


def rows_of(path, command, *flags):
    """The rows of a run, with its sizes in the settings."""
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES[command].items()]
    assert main([command, *sizes, *flags, "--samples", "2", "--json", str(path / "a.json")]) == 0
    result = json.loads((path / "a.json").read_text())
    assert (result["benchmark"], result["schema"], result["complete"]) == (command, 2, True)
    assert SIZES[command].items() <= result["settings"].items()
    assert result["agreement"] == []
    return result["rows"]


@pytest.mark.slow
def test_a_run_without_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        train, "without_torch", lambda passes: dict.fromkeys(passes, "torch is not installed")
    )
    ours, *others = rows_of(tmp_path, "train", "--models", "transformer", "--variants", "jax")
    assert (ours["model"], ours["candidate"], ours["status"]) == ("transformer", "jax", "measured")
    assert ours["step_seconds"] == pytest.approx(ours["seconds"] / 2)
    assert ours["tokens_per_second"] == pytest.approx(128 / ours["step_seconds"])
    assert ours["temp_bytes"] > 0
    assert [row["candidate"] for row in others] == ["torch", "torch_compile"]
    assert "transformer torch skipped: torch is not installed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_models_that_train_at_once(tmp_path):
    (row,) = rows_of(tmp_path, "mqar", "--mixers", "attention", "--vmapped-runs", "2")
    assert (row["candidate"], row["models"], row["status"], row["samples"]) == ("jax_2", 2, "measured", 2)
    assert row["examples_per_second_per_model"] == pytest.approx(4 / row["step_seconds"])
    assert row["examples_per_second"] == row["models"] * row["examples_per_second_per_model"]
    assert row["compile_seconds"] > 0


def test_ratios_are_of_all_models_together_and_carry_the_spread_of_both():
    speeds = {"jax_1": 100.0, "jax_4": 150.0, "torch_labels": 50.0, "torch_all": None}
    *rows, absent = (
        {"mixer": "based", "candidate": name, "examples_per_second": speed, "spread": spread}
        for (name, speed), spread in zip(speeds.items(), (0.03, 0.04, 0.04, 0.1), strict=True)
    )
    columns = {base: training.ratios(training.MQAR, [*rows, absent], base) for base in speeds}
    assert {base: [write(row) for row in rows] for base, write in columns.items()} == {
        "jax_1": ["1", "1.50", "0.50"],
        "jax_4": ["0.67", "1", "0.33"],
        "torch_labels": ["2.00", "3.00", "1"],
        "torch_all": ["\N{EN DASH}"] * 3,
    }
    ours, theirs = (
        {"model": "based", "candidate": name, "tokens_per_second": speed, "spread": spread}
        for name, speed, spread in (("jax", 100.0, 0.03), ("torch", 50.0, 0.04))
    )
    assert training.ratios(training.TRAIN, [ours, theirs], "torch")(ours) == "2.00 ± 0.10"


@pytest.mark.slow
def test_a_call_goes_on_where_the_last_one_ended():
    program = mqar.Workload(mqar.Mqar(**SIZES["mqar"]), "attention").program(2)
    for calls in (1, 2):
        state, losses = program.call()
        assert int(state.step) == calls * SIZES["mqar"]["steps"]
        assert np.isfinite(losses).all()
    assert losses[0] != losses[1]  # two learning rates


def test_a_difference_is_noticed(capsys):
    ours = [4.0, 3.9]
    assert training.agreement("torch", ours, ours)["agrees"]
    assert training.agreement("torch", ours, [4.0, float("nan")])["relative_error"] is None
    entry = training.agreement("torch", ours, [4.0, 3.9 * (1 + 2 * AGREEMENT)])
    entry |= {"model": "transformer", "other": "jax"}
    assert not entry["agrees"]
    assert entry["relative_error"] == pytest.approx(1.95 * AGREEMENT)  # of the largest loss
    results = report.new_report("train", "", SIZES["train"] | {"models": {}}, [], [])
    results["agreement"].append(entry)
    assert report.make(results, lambda: True, "title", training.text, None) == 1
    assert "transformer: torch DISAGREES with jax:" in " ".join(capsys.readouterr().out.split())


def test_torch_computes_the_same_losses():
    pytest.importorskip("torch")
    workload = train.Workload(train.Train(**SIZES["train"]), "transformer")
    np.testing.assert_allclose(workload.losses, workload.torch_losses("torch"), rtol=AGREEMENT)


@pytest.mark.slow
def test_the_default_models_have_about_five_million_parameters_in_every_variant():
    for model in train.MODELS:
        for _, changes in train.VARIANTS.values():
            config = train.Train().architecture(model).replace(**changes)
            assert bj.param_count(config) == pytest.approx(5e6, rel=0.05)


def test_one_cpu_is_asked_for(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu")])
    with pytest.raises(ValueError, match="JAX devices = 'gpu': expected one CPU"):
        main(["mqar"])
