"""The two-layer models of the synthetic studies: their size, their odd blocks, their initialisation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.models import MixerSpec, mqar_backbone
from based_jax.models.config import MLPS
from based_jax.testing.laws import QUICKLY


def initialised(model):
    init = jax.jit(model.init, compiler_options=QUICKLY)
    return nn.meta.unbox(init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))


@pytest.mark.release
def test_parameters_are_as_many_as_the_authors():
    for mixer, d_model, options, count in [
        ("attention", 64, {}, 545_984),
        ("attention", 128, {}, 1_132_928),
        ("based", 48, {"feature_dim": 8}, 401_616),
        ("based", 64, {"feature_dim": 8}, 538_560),
        ("based", 64, {}, 539_584),
        ("based", 128, {"feature_dim": 24}, 1_105_792),
        ("linear_attention", 64, {"feature_dim": 64}, 545_728),
        ("sliding_window", 128, {"left": 16}, 1_132_928),
        ("hyena", 64, {}, 591_488),
        ("h3", 64, {}, 565_632),
        ("base_conv", 64, {"l_max": 64}, 534_656 + 3 * 64),  # positions, no parameters there
    ]:
        assert bj.param_count(mqar_backbone(mixer, d_model, length=1024, options=options)) == count


def test_layers_and_positions():
    attention = mqar_backbone(None, 64, length=64, layers=["attention"] * 2, positions=True)
    assert bj.param_count(attention) == 562_304
    convolutions = [MixerSpec("base_conv", {"kernel_size": size}) for size in (3, -1, 3, -1)]
    four = mqar_backbone(None, 64, length=64, layers=convolutions, dropout=0.5)
    assert four.embed_dropout == 0.5
    assert bj.param_count(four) == 544_896 + 2 * 3 * 64


def test_the_normed_copy_is_an_option():
    count = {mlp: bj.param_count(mqar_backbone("attention", 8, 32, mlp=mlp)) for mlp in MLPS}
    assert bj.param_count(mqar_backbone("attention", 8, 32)) == count["identity"]
    norms = 2 * 2 * 8  # scale and bias of two layers
    assert count["identity"] - count["none"] == norms
    assert count["plain"] - count["identity"] == 2 * (2 * 8 * 32 + 32 + 8)
    assert count["gated"] - count["plain"] == 2 * (8 * 32 + 32)


def test_mamba_has_blocks_of_its_own():
    config = mqar_backbone("mamba", 16, vocab_size=32, length=8)
    assert [config.layer(i).mixer for i in range(2)] == ["mamba", "mamba"]
    shapes = jax.eval_shape(bj.LanguageModel(config).init, jax.random.key(0), jnp.zeros((1, 8), int))
    assert set(shapes["params"]["layers_1"]) == {"norm1", "mixer"}
    assert set(shapes["params"]["layers_1"]["norm1"]) == {"scale"}
    assert set(shapes["params"]["final_norm"]) == {"scale", "bias"}


@pytest.mark.slow
def test_output_maps_are_shrunk_where_the_authors_shrink_them():
    def deviation(mixer: str) -> float:
        model = bj.LanguageModel(mqar_backbone(mixer, 64, vocab_size=32))
        params = initialised(model)
        return float(np.std(params["params"]["layers_1"]["mixer"]["out"]["kernel"]))

    assert deviation("attention") == pytest.approx(0.01, rel=0.1)
    assert deviation("based") == pytest.approx(0.02, rel=0.1)


@pytest.mark.slow
def test_every_mixer_has_a_backbone():
    for name in bj.mixers.names():
        config = mqar_backbone(name, 24, length=64)
        assert config.layer(1).mixer == name
        assert bj.param_count(config.replace(schedule=config.schedule[1])) > config.vocab_size * 24


def test_bad_backbones():
    for arguments, message in [
        ({"mixer": None}, "mixer = None: expected a mixer's name, unless layers are given"),
        ({"mixer": "gla", "mlp": "glu"}, "mlp = 'glu': expected one of"),
        ({"mixer": "lstm"}, "mixer = 'lstm': expected one of 'attention'"),
        ({"mixer": "based", "options": {"depth": 1}}, "option of linear_attention = 'depth'"),
        ({"mixer": None, "layers": ["gla"], "options": {"num_heads": 1}}, "none with layers"),
    ]:
        with pytest.raises(ValueError, match=message):
            mqar_backbone(d_model=8, **arguments)
