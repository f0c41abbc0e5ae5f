"""The authors' form and ours, there and back; and the models that their code cannot build."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import based_jax as bj
from based_jax import mixers
from based_jax.convert import __main__ as convert
from based_jax.convert import load_pretrained, read_state_dict, save_pretrained
from based_jax.convert.config_for_authors import config_for_authors
from based_jax.convert.configs import model_config
from based_jax.convert.layouts import flatten
from based_jax.convert.torch_file.reader import load_torch_file
from based_jax.models import MixerSpec, ModelConfig
from tests.convert.torch_files import CHECKPOINTS, same

NAMES = sorted(path.name for path in CHECKPOINTS.iterdir())
REWRITTEN = {"n_inner", "mixer", "alt_mixer", "special_initializer"}
"""Entries that come out in other words: widths rounded, misspelt and inert options left out."""


def read_config(directory: Path) -> dict:
    return json.loads((directory / "config.json").read_text())


def layers(config: ModelConfig) -> list:
    """Every layer's mixer with its defaults filled in."""
    return [
        mixers.make(spec.mixer, d_model=config.d_model, **spec.options)
        for spec in map(config.layer, range(config.num_layers))
    ]


def assert_same_model(one: ModelConfig, other: ModelConfig) -> None:
    assert layers(one) == layers(other)
    fields = (config.to_dict() for config in (one, other))
    first, second = ({k: v for k, v in own.items() if k not in ("mixers", "schedule")} for own in fields)
    assert first == second


@pytest.mark.parametrize("name", NAMES)
def test_authors_to_native_to_authors(name, tmp_path, capsys):
    """Also: the command writes what the function does, and copies the tokenizer."""
    source, native, back = tmp_path / "source", tmp_path / "native", tmp_path / "back"
    shutil.copytree(CHECKPOINTS / name, source)
    (source / "tokenizer.json").write_text("{}")
    convert.main([str(source), str(native)])
    convert.main([str(native), str(back), "--to", "authors"])
    assert "written as  authors: config.json, pytorch_model.bin" in capsys.readouterr().out
    assert sorted(file.name for file in back.iterdir()) == [
        "README.md",
        "config.json",
        "pytorch_model.bin",
        "tokenizer.json",
    ]
    original = load_torch_file(CHECKPOINTS / name / "pytorch_model.bin")
    same(load_torch_file(back / "pytorch_model.bin"), original)
    before, after = read_config(source), read_config(back)
    assert {key: after[key] for key in before if key not in REWRITTEN} == {
        key: before[key] for key in before if key not in REWRITTEN
    }
    (one, params), (other, again) = load_pretrained(source), load_pretrained(back)
    assert_same_model(one.config, other.config)
    same(flatten(again), flatten(params))
    save_pretrained(tmp_path / "function", one, params, to="authors")
    written = (tmp_path / "function" / "pytorch_model.bin").read_bytes()
    assert written == (back / "pytorch_model.bin").read_bytes()


THEIRS = sorted(
    name
    for name in bj.presets.names()
    if {spec.mixer for spec in bj.presets.get(name).mixers.values()}
    <= {"attention", "gated_conv", "linear_attention", "mamba", "sliding_window"}
    and not any(
        {"decay", "feature_map"} & spec.options.keys() for spec in bj.presets.get(name).mixers.values()
    )
)


def test_presets():
    """Those that the authors' code can build come back; the others are refused."""
    assert {f"{kind}-{size}" for kind in ("based", "attn", "mamba") for size in ("360m", "1b")} < set(THEIRS)
    for name in bj.presets.names():
        preset = bj.presets.get(name)
        if name not in THEIRS:
            with pytest.raises(ValueError, match="as the authors' code builds nothing else"):
                config_for_authors(preset)
            continue
        written = json.loads(json.dumps(config_for_authors(preset)))
        assert_same_model(model_config(written, {}), preset)


HYBRID = ModelConfig(
    vocab_size=11,
    d_model=8,
    schedule="ACLSA",
    mixers={
        "A": MixerSpec("attention", {"num_heads": 4, "num_kv_heads": 2, "rotary_base": 500.0}),
        "C": MixerSpec("gated_conv", {"expand": 2, "kernel_size": 4, "bias": False, "conv_bias": True}),
        "L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4, "eps": 1e-6}),
        "S": MixerSpec("sliding_window", {"num_heads": 4, "num_kv_heads": 2, "rotary_base": 500.0}),
    },
    mlp_hidden=256,
    mlp_activation="gelu",
    mlp_bias=True,
    norm="layer",
    norm_eps=1e-6,
    max_positions=32,
    embed_dropout=0.1,
    pad_vocab_multiple=4,
    init_std=0.03,
    max_length=32,
)


def changed(letter: str, **options) -> ModelConfig:
    spec = HYBRID.mixers[letter]
    other = MixerSpec(spec.mixer, {**spec.options, **options})
    return HYBRID.replace(schedule=f"{letter}X", mixers={**HYBRID.mixers, "X": other})


MAMBA = bj.presets.get("mamba-360m")


def test_models_that_the_authors_code_cannot_build(tmp_path):
    for config, message in [
        (HYBRID, "layer 3 = 'sliding_window': expected at most three different mixers"),
        (changed("A", num_heads=2), r"num_heads of layer 1 \(attention\) = 2: expected 4"),
        (changed("S", rotary_interleaved=True), r"rotary_interleaved of layer 1 \(sliding_window\) = True"),
        (changed("L", feature_map="relu"), r"feature_map of layer 1 \(linear_attention\) = 'relu'"),
        (changed("L", decay="gated"), "decay of layer 1"),
        (changed("L", rotary_fraction=1.0), "rotary_fraction of layer 1"),
        (changed("L", feature_scale=0.7), "feature_scale of layer 1"),
        (HYBRID.replace(schedule="C", mlp_hidden=100), "mlp_hidden = 100: expected 256"),
        (HYBRID.replace(schedule="C", mlp="none"), "mlp = 'none'"),
        (HYBRID.replace(schedule="C", final_norm="rms"), "final_norm = 'rms': expected 'layer'"),
        (HYBRID.replace(schedule="C", positions="sinusoidal"), "positions = 'sinusoidal'"),
        (HYBRID.replace(schedule="C", drop_path=0.1), "drop_path = 0.1"),
        (HYBRID.replace(schedule="C", mlp_activation="relu"), "mlp_activation = 'relu': expected 'silu'"),
        (HYBRID.replace(schedule="C", mlp="plain", mlp_activation="silu"), "mlp_activation = 'silu'"),
        (changed("A", scale=0.3).replace(schedule="XX"), "scale of layer 0 .* = 0.3: expected 0.707"),
        (changed("A", head_dim=4).replace(schedule="X"), r"head_dim of layer 0 \(attention\) = 4:"),
        (HYBRID.with_mixer("h3", [1]), "mixer of layer 1 = 'h3': expected one of gated_conv"),
        (MAMBA.with_mixer("mamba", [3], d_state=8), r"d_state of layer 3 \(mamba\) = 8: expected 16"),
        (MAMBA.replace(norm_eps=1e-6), "norm_eps = 1e-06"),
        (MAMBA.replace(max_positions=9), "max_positions = 9"),
    ]:
        with pytest.raises(ValueError, match=message):
            config_for_authors(config)


def test_a_mambas_options_come_back():
    options = {
        "d_state": 8,
        "d_conv": 3,
        "expand": 1,
        "dt_rank": 5,
        "dt_min": 0.01,
        "dt_max": 0.2,
        "dt_floor": 1e-3,
    }
    config = MAMBA.with_mixer("mamba", **options, num_layers=46)
    assert_same_model(model_config(config_for_authors(config), {}), config)


class TestCommand:
    def test_narrower_weights(self, tmp_path, capsys):
        target = tmp_path / "half"
        convert.main([str(CHECKPOINTS / "attn-tiny"), str(target), "--to", "authors", "--dtype", "bfloat16"])
        assert "bfloat16" in capsys.readouterr().out
        whole, half = (read_state_dict(path) for path in (CHECKPOINTS / "attn-tiny", target))
        same(half, {key: tensor.astype(ml_dtypes.bfloat16) for key, tensor in whole.items()})

    def test_values_that_overflow_are_named(self):
        with pytest.raises(ValueError, match="dtype = 'float16': expected one with the range for the"):
            convert.narrowed({"params": {"x": {"y": np.array([1e6], np.float32)}}}, "float16")

    def test_other_weights_in_the_way(self, tmp_path):
        shutil.copy(CHECKPOINTS / "attn-tiny" / "model.safetensors", tmp_path)
        with pytest.raises(ValueError, match=r"expected no weights that a loader prefers to"):
            convert.main([str(CHECKPOINTS / "attn-tiny"), str(tmp_path), "--to", "authors"])
