"""The authors' config.json: schedules, sizes, and models that are not here."""

import json
from pathlib import Path

import based_jax as bj
from based_jax.convert.configs import model_config

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
MIXERS = "based.models.mixers"
BASED_360M = {
    **json.loads((CHECKPOINTS / "based-tiny" / "config.json").read_text()),
    "n_embd": 1024,
    "n_head": 16,
    "n_layer": 27,
    "n_inner": 2048,
    "alt_mixer_layers": [1, 6, 11, 16, 21],
    "alt_mixer_2_layers": [2, 7, 12, 17, 22],
    "alt_mixer": {
        "_target_": "based.models.mixers.linear_attention.LinearAttention",
        "feature_dim": 16,
        "num_heads": 16,
    },
    "alt_mixer_2": {
        "_target_": "based.models.mixers.slide_attention.SlidingAttention",
        "window_size": 128,
        "num_heads": 16,
    },
}


def test_based_360m():
    config = {key: value for key, value in BASED_360M.items() if key != "vocab_size"}
    ours = model_config(config, {})
    preset = bj.presets.get("based-360m")
    assert ours.schedule == preset.schedule
    assert ours.padded_vocab_size == 50264
    assert bj.param_count(ours) == bj.param_count(preset) == 362_620_928


def test_a_config_that_transformers_wrote():
    """Its n_positions is another name of max_position_embeddings, 0 for no position embeddings."""
    config = BASED_360M | {"n_positions": 0, "max_position_embeddings": 0}
    ours = model_config(config, {})
    assert (ours.max_positions, ours.max_length) == (0, 1024)


def test_width_is_read_off_the_weights():
    config = json.loads((CHECKPOINTS / "attn-tiny" / "config.json").read_text())
    # The authors round in two ways.
    shapes = {f"transformer.layers.{layer}.mlp.fc2.weight": (1680, 4480) for layer in range(2)}
    assert model_config(config | {"n_embd": 1680, "n_head": 24}, shapes).mlp_hidden == 4480


MAMBA = {"d_model": 1024, "n_layer": 46, "ssm_cfg": {"dt_rank": "auto"}, "pad_vocab_size_multiple": 16}


def test_mamba_has_the_papers_parameters():
    """With GPT's entries too, which have no effect."""
    config = model_config(MAMBA | {"n_embd": 768, "n_head": 12, "n_inner": None}, {})
    assert (config.mlp, config.norm, config.schedule) == ("none", "rms", "M" * 46)
    assert (config.vocab_size, config.padded_vocab_size) == (50277, 50288)
    assert bj.param_count(config) == 358_190_080
