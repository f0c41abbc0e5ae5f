"""`python -m benchmarks mqar` on tiny sizes: JSON, tables, disagreement, interruption."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.models import training, training_tables
from benchmarks.models.mqar import Mqar, Workload
from benchmarks.models.training import AGREEMENT

RECIPE = {"d_model": 8, "vocab_size": 32, "length": 16, "pairs": 2, "batch_size": 4, "steps": 2}
SIZES = [f"--{name.replace('_', '-')}={value}" for name, value in RECIPE.items()]


@pytest.mark.slow
def test_every_candidate_has_its_row(tmp_path):
    flags = ["--mixers", "attention", "--vmapped-runs", "2", "--samples", "2"]
    assert main(["mqar", *SIZES, *flags, "--json", str(tmp_path / "mqar.json")]) == 0
    result = json.loads((tmp_path / "mqar.json").read_text())
    assert (result["benchmark"], result["schema"], result["complete"]) == ("mqar", 2, True)
    assert {name: result["settings"][name] for name in RECIPE} == RECIPE
    assert [candidate["name"] for candidate in result["candidates"]] == ["jax_2"]
    (row,) = result["rows"]
    assert (row["candidate"], row["models"], row["status"], row["samples"]) == ("jax_2", 2, "measured", 2)
    assert row["step_seconds"] == pytest.approx(row["seconds"] / 2)
    assert row["examples_per_second_per_model"] == pytest.approx(4 / row["step_seconds"])
    assert row["examples_per_second"] == row["models"] * row["examples_per_second_per_model"]
    assert row["compile_seconds"] > 0


def test_ratios_are_of_all_models_together_and_carry_the_spread_of_both():
    speeds = {"jax_1": 100.0, "jax_4": 150.0, "torch_labels": 50.0, "torch_all": None}
    rows = [
        {"mixer": "based", "candidate": name, "examples_per_second": speed, "spread": spread}
        for (name, speed), spread in zip(speeds.items(), (0.03, 0.04, 0.04, 0.1), strict=True)
    ]
    ratios = training_tables.ratios(training_tables.MQAR, rows)
    found = {(entry["candidate"], entry["other"]): entry["ratio"] for entry in ratios}
    assert found == {
        ("jax_1", "torch_labels"): 2.0,
        ("jax_4", "jax_1"): 1.5,
        ("jax_4", "torch_labels"): 3.0,
        ("torch_labels", "jax_1"): 0.5,
    }
    assert ratios[0]["spread"] == pytest.approx(0.05)


def test_a_call_goes_on_where_the_last_one_ended():
    program = Workload(Mqar(**RECIPE), "attention").program(2)
    for calls in (1, 2):
        state, losses = program.call()
        assert int(state.step) == calls * RECIPE["steps"]
        assert np.isfinite(losses).all()
    assert losses[0] != losses[1]  # two learning rates


def test_a_difference_is_noticed(capsys):
    ours = [4.0, 3.9]
    assert training.agreement("torch", ours, ours)["agrees"]
    assert training.agreement("torch", ours, [4.0, float("nan")])["relative_error"] is None
    entry = training.agreement("torch", ours, [4.0, 3.9 * (1 + 2 * AGREEMENT)]) | {"model": "transformer"}
    assert not entry["agrees"]
    assert entry["relative_error"] == pytest.approx(1.95 * AGREEMENT)  # of the largest loss
    sizes = {"d_model": 8, "vocab_size": 8, "batch_size": 1, "length": 8, "models": {}}
    results = report.new_report("train", "", sizes, [], [])
    results |= {"agreement": [entry], "summary": {"ratios": []}}
    assert report.make(results, lambda: True, "title", training_tables.text, None) == 1
    assert "transformer: torch DISAGREES with jax:" in " ".join(capsys.readouterr().out.split())


def test_one_cpu_is_asked_for(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu")])
    with pytest.raises(ValueError, match="JAX devices = 'gpu': expected one CPU"):
        main(["mqar"])
