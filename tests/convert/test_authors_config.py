"""The authors' config.json: schedules, sizes, and models that are not here."""

import json
from pathlib import Path

import pytest

import based_jax as bj
from based_jax.convert.authors_config import model_config

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
BASED_360M = {
    **json.loads((CHECKPOINTS / "based-tiny" / "config.json").read_text()),
    "n_embd": 1024, "n_head": 16, "n_layer": 27, "n_inner": 2048,
    "alt_mixer_layers": [1, 6, 11, 16, 21], "alt_mixer_2_layers": [2, 7, 12, 17, 22],
    "alt_mixer": {"_target_": "x.LinearAttention", "feature_dim": 16, "num_heads": 16},
    "alt_mixer_2": {"_target_": "x.SlidingAttention", "window_size": 128, "num_heads": 16},
}  # fmt: skip


def test_based_360m():
    config = {key: value for key, value in BASED_360M.items() if key != "vocab_size"}
    ours = model_config(config, {})
    preset = bj.presets.get("based-360m")
    assert ours.schedule == preset.schedule
    assert ours.padded_vocab_size == 50264
    assert bj.param_count(ours) == bj.param_count(preset) == 362_620_928


def test_the_second_alternative_wins():
    config = BASED_360M | {"alt_mixer_2_layers": [1, 2]}
    assert model_config(config, {}).schedule.startswith("CSS")


def test_width_without_n_inner():
    config = json.loads((CHECKPOINTS / "attn-tiny" / "config.json").read_text())
    assert model_config(config | {"n_embd": 1024, "n_head": 16}, {}).mlp_hidden == 2816


def test_width_is_read_off_the_weights():
    config = json.loads((CHECKPOINTS / "attn-tiny" / "config.json").read_text())
    shapes = {"transformer.layers.0.mlp.fc2.weight": (1680, 4480)}  # the authors round in two ways
    assert model_config(config, shapes).mlp_hidden == 4480


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alt_mixer": {"_target_": "x.Mamba"}}, "_target_ = 'x.Mamba': expected one of BaseConv"),
        ({"activation_function": "relu"}, "activation_function = 'relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"prenorm": False}, "prenorm"),
        (
            {"alt_mixer": {"_target_": "LinearAttention", "parallel_implementation": "tk"}},
            "parallel_implementation = 'tk'",
        ),
    ],
)
def test_models_that_are_not_here(changes, message):
    with pytest.raises(ValueError, match=message):
        model_config(BASED_360M | changes, {})


def test_mamba():
    with pytest.raises(ValueError, match="mamba"):
        model_config({"d_model": 32, "n_layer": 2, "ssm_cfg": {}}, {})
