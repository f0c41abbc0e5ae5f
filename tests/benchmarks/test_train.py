"""`python -m benchmarks train` on tiny sizes: JSON, tables, the same numbers in torch, errors."""

import importlib.util
import json

import jax
import numpy as np
import pytest

from based_jax.ops.cross_entropy import cross_entropy
from benchmarks.__main__ import main
from benchmarks.models import training_tables
from benchmarks.models.train import Train
from benchmarks.models.train_workload import TORCH, VARIANTS, Sizes, Workload, _logits_at_a_time, torch_forms
from benchmarks.models.training import AGREEMENT
from tests.benchmarks.refusals import expect_one_line

SIZES = {"d_model": 64, "vocab_size": 64, "length": 64, "batch_size": 2, "steps": 2}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
PAGE = "before\n<!-- train -->\nold\n<!-- /train -->\nafter\n"
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.slow
def test_a_run_without_torch(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(PAGE)
    flags = ["--models", "transformer", "--variants", "jax", "--samples", "2"]
    outputs = ["--json", str(tmp_path / "train.json"), "--markdown", str(tmp_path / "page.md")]
    monkeypatch.setattr("benchmarks.models.training.missing_torch", lambda: "torch is not installed")
    assert main(["train", *FLAGS, *flags, *outputs]) == 0
    result = json.loads((tmp_path / "train.json").read_text())
    assert (result["benchmark"], result["complete"], result["agreement"]) == ("train", True, [])
    assert {name: result["settings"][name] for name in SIZES} == SIZES
    ours, *others = result["rows"]
    assert (ours["model"], ours["candidate"], ours["status"]) == ("transformer", "jax", "measured")
    assert ours["step_seconds"] == pytest.approx(ours["seconds"] / 2)
    assert ours["tokens_per_second"] == pytest.approx(128 / ours["step_seconds"])
    assert ours["temp_bytes"] > 0
    assert [row["candidate"] for row in others] == ["torch", "torch_compile"]
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before\n<!-- train -->\nfloat32: transformer AAAAA of ")
    assert page.endswith("\n<!-- /train -->\nafter\n")
    assert "transformer torch skipped: torch is not installed" in page


def test_ratios_carry_the_spread_of_both():
    rows = [
        {"model": "based", "candidate": name, "seconds": 1.0, "tokens_per_second": speed, "spread": spread}
        for name, speed, spread in (("jax", 30.0, 0.03), ("torch", 10.0, 0.04))
    ]
    first, second = training_tables.ratios(training_tables.TRAIN, rows)
    assert (first["candidate"], first["other"], first["ratio"]) == ("jax", "torch", 3.0)
    assert first["spread"] == second["spread"] == pytest.approx(0.05)


def test_the_default_models_have_about_five_million_parameters():
    import based_jax as bj

    for model in Train().models:
        assert bj.param_count(Train().architecture(model)) == pytest.approx(5e6, rel=0.05)


def test_the_loss_is_made_in_as_many_parts_as_asked():
    shape = jax.ShapeDtypeStruct

    def loops() -> int:
        jaxpr = jax.make_jaxpr(lambda *arrays: cross_entropy(*arrays))(
            shape((2, 8, 4), "float32"),
            shape((16, 4), "float32"),
            shape((2, 8), "int32"),
            shape((2, 8), "float32"),
        )
        return str(jaxpr).count("length=4")

    assert loops() == 0
    with _logits_at_a_time(2 * 8 * 16 // 4):
        assert loops() == 1
    assert loops() == 0


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("model", Train().models)
def test_torch_computes_the_same_losses(model):
    from benchmarks.models import train_torch

    workload = Workload(Sizes(**(SIZES | {"length": 256})), model)
    for name in ("torch", "torch_chunks") if model == "based" else ("torch",):
        theirs = train_torch.losses(workload, TORCH[name])
        np.testing.assert_allclose(workload.losses, theirs, rtol=AGREEMENT)


def test_long_texts_are_trained_by_chunks_of_torch_too():
    assert [list(torch_forms(model, 1024)) for model in ("based", "transformer")] == [
        list(TORCH),
        ["torch", "torch_compile"],
    ]
    assert list(torch_forms("based", 512)) == ["torch", "torch_compile"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models", "mamba"], "--models = 'mamba': expected one of"),
        (["--variants", "jax,jax"], "--variants = 'jax,jax': expected one or more, each once"),
        (["--length", "100"], "--length = 100: expected a multiple of the window of 64 keys"),
        (["--d-model", "96"], "--d-model = 96: expected a multiple"),
        (["--seconds", "0"], "--seconds = 0.0: expected more than 0"),
        (["--markdown", "/no/such/page.md"], "/no/such/page.md"),
    ],
)
def test_wrong_flags_are_one_line(flags, message, capsys):
    expect_one_line("train", flags, message, capsys)


def test_every_variant_has_a_model():
    for variant in VARIANTS.values():
        Train().architecture("based").replace(**variant.model)
