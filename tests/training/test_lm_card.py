"""The model card of a run: what it says of the training, and what it keeps to itself."""

import math
from pathlib import Path

import pytest

from based_jax.convert.model_card import Measurement, ModelCard
from based_jax.convert.pretrained import read_card, read_config
from based_jax.models import MixerSpec, ModelConfig
from based_jax.training.banner import lm_card
from based_jax.training.lm_config import LMConfig

MODEL = ModelConfig(257, 16, "C", {"C": MixerSpec("gated_conv")}, 8, max_length=32)


def card_of(metrics=None, **settings) -> ModelCard:
    return lm_card(LMConfig(Path("runs/first"), **settings), MODEL, 10, metrics or {})


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("/home/me/secret/text", "text"),
        ("~/secret/a.txt", "a.txt"),
        ("tokens:/data/me/pile", "tokens:pile"),
        ("tokens:/data/pile=0.7,/home/me/src/**=0.3", "tokens:pile=0.7,**=0.3"),
        ("data/pile/*.jsonl", "data/pile/*.jsonl"),
        ("hf:owner/name", "hf:owner/name"),
    ],
)
def test_directories_of_the_machine_are_left_out(data, shown):
    assert card_of(data=data).training["data"] == shown


def test_hub_ids(tmp_path, monkeypatch):
    card = card_of(data="hf:owner/text", init_from="hazyresearch/based-360m@v1")
    assert (card.base_model, card.datasets) == ("hazyresearch/based-360m", ("owner/text",))
    monkeypatch.chdir(tmp_path)
    Path("runs/zero").mkdir(parents=True)
    assert card_of(init_from="runs/zero").base_model is None
    assert card_of(init_from="/no/such/run").base_model is None


def test_metrics():
    card = card_of({"eval_loss": 1.5, "eval_perplexity": math.inf, "eval_loss/a": math.nan})
    assert card.measurements == (Measurement("held out of stdlib", "loss", 1.5),)


def test_a_finished_run_has_one(finished):
    workdir, run = finished
    directory = workdir / "model"
    card = read_card(read_config(directory))
    assert card.training["steps"] == 24
    assert {m.metric: m.value for m in card.measurements} == {
        name.removeprefix("eval_"): value for name, value in run.metrics.items()
    }
    text = (directory / "README.md").read_text()
    assert f"# {workdir.name}\n" in text
    assert str(workdir.parent) not in text
