"""Floating-point operations that a training step asks for."""

import pytest

import based_jax as bj
from based_jax.models import MixerSpec
from based_jax.profile import model_flops, training_flops, training_operations

CONFIG = bj.ModelConfig(
    vocab_size=64,
    d_model=16,
    schedule="HCH",
    mixers={
        "C": MixerSpec("gated_conv"),
        "H": MixerSpec("base_conv", {"kernel_size": -1, "l_max": 32}),
    },
    mlp_hidden=32,
)


def test_layers_of_a_kind_are_traced_once_and_recomputation_is_not_the_models():
    whole = training_operations(CONFIG, 32)
    assert whole.transforms > 0
    counted = model_flops(CONFIG.replace(remat="block"), 32)
    assert counted == pytest.approx(whole.products + whole.transforms, rel=1e-12)


def test_the_papers_formula_is_taken_where_there_is_one():
    config = bj.presets.get("zoology-attention-73m")
    assert model_flops(config, 2048) == training_flops(config, 2048) == pytest.approx(1.52e12, rel=5e-3)
