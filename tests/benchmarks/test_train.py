"""`python -m benchmarks train` on tiny sizes: JSON, tables, the same numbers in torch."""

import json

import numpy as np
import pytest

import based_jax as bj
from benchmarks.__main__ import main
from benchmarks.models.train import VARIANTS, Train, Workload
from benchmarks.models.training import AGREEMENT

SIZES = {"d_model": 64, "vocab_size": 64, "length": 64, "batch_size": 2, "steps": 2}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]


@pytest.mark.slow
def test_a_run_without_torch(tmp_path, monkeypatch, capsys):
    flags = ["--models", "transformer", "--variants", "jax", "--samples", "2"]
    monkeypatch.setattr(
        "benchmarks.models.train.without_torch",
        lambda passes: dict.fromkeys(passes, "torch is not installed"),
    )
    assert main(["train", *FLAGS, *flags, "--json", str(tmp_path / "train.json")]) == 0
    result = json.loads((tmp_path / "train.json").read_text())
    assert (result["benchmark"], result["complete"], result["agreement"]) == ("train", True, [])
    assert {name: result["settings"][name] for name in SIZES} == SIZES
    ours, *others = result["rows"]
    assert (ours["model"], ours["candidate"], ours["status"]) == ("transformer", "jax", "measured")
    assert ours["step_seconds"] == pytest.approx(ours["seconds"] / 2)
    assert ours["tokens_per_second"] == pytest.approx(128 / ours["step_seconds"])
    assert ours["temp_bytes"] > 0
    assert [row["candidate"] for row in others] == ["torch", "torch_compile"]
    assert "transformer torch skipped: torch is not installed" in " ".join(capsys.readouterr().out.split())


def test_the_default_models_have_about_five_million_parameters_in_every_variant():
    for model in Train().models:
        config = Train().architecture(model)
        for _, changes in VARIANTS.values():
            assert bj.param_count(config.replace(**changes)) == pytest.approx(5e6, rel=0.05)


def test_torch_computes_the_same_losses():
    pytest.importorskip("torch")
    workload = Workload(Train(**SIZES), "transformer")
    np.testing.assert_allclose(workload.losses, workload.torch_losses("torch"), rtol=AGREEMENT)
