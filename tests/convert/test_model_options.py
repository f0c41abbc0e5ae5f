"""Options of the authors' GPT, one model for each: logits against NumPy in float64, and both ways."""

import json

import chex
import jax
import numpy as np
import pytest

import based_jax as bj
from based_jax.convert import from_torch, load_pretrained, to_torch
from based_jax.convert.configs import model_config
from based_jax.convert.state_dict import with_norms_before
from tests.arrays import array
from tests.convert import numpy_gpt
from tests.convert.random_models import write
from tests.convert.torch_files import CHECKPOINTS, same
from tests.marks import slow_but
from tests.tolerances import FLOAT32, assert_close

BASE = {
    "n_embd": 8,
    "n_head": 2,
    "n_layer": 2,
    "n_inner": 16,
    "vocab_size": 11,
    "max_position_embeddings": 0,
    "activation_function": "relu",
    "rms_norm": True,
    "rotary_emb_fraction": 0.5,
    **dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias", "out_proj_bias"), False),
    **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
}

CASES = {
    "inverse layer scale": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 2},
    "scale one": {"scale_attn_weights": False},
    "both scales": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    "nominal head width": {"head_dim": 8, "rotary_emb_fraction": 0.25},
    "grouped, interleaved": {"n_head": 4, "n_head_kv": 2, "rotary_emb_interleaved": True, "n_embd": 16},
    "window": {"window_size": [2, 0], "rotary_emb_base": 50.0},
    "gelu": {"activation_function": "gelu", "mlp_fc1_bias": True},
    "gelu_new": {"activation_function": "gelu_new", "mlp_fc2_bias": True, "n_inner": None},
    "gelu_fast": {"activation_function": "gelu_fast"},
    "sqrelu": {"activation_function": "sqrelu", "mlp_fc1_bias": True, "mlp_fc2_bias": True},
    "glu": {"activation_function": "glu", "mlp_fc2_bias": True},
    "geglu, fc3": {"activation_function": "geglu", "mlp_type": "alt", "mlp_fc1_bias": True, "ff_mult": 4},
    "post-norm": {"prenorm": False, "rms_norm": False, "n_layer": 2},
    "post-norm, rms": {"prenorm": False, "qkv_proj_bias": True, "out_proj_bias": True},
    "parallel": {"parallel_block": True, "rms_norm": False, "layer_norm_epsilon": 0.3},
    "parallel, tied": {"parallel_block": True, "parallel_block_tied_norm": True, "n_layer": 2},
    "untied": {"tie_word_embeddings": False},
    "positions": {"max_position_embeddings": 9, "rotary_emb_fraction": 0.0, "layer_norm_epsilon": 0.1},
    "projected": {"word_embed_proj_dim": 4, "tie_word_embeddings": False},
    "projected, tied": {"word_embed_proj_dim": 12},
}
MIXERS = "based.models.mixers"
MHA = "flash_attn.modules.mha.MHA"
CONV = {"_target_": f"{MIXERS}.convolution.BaseConv"}
LINEAR = {
    "_target_": f"{MIXERS}.linear_attention.LinearAttention",
    "feature_map": {"_target_": f"{MIXERS}.linear_attention.TaylorExp", "input_dim": 16},
    **{"feature_dim": 4, "num_heads": 3, "head_dim": 5, "eps": 0.1},
}
ENTRIES = {
    "conv": {"mixer": CONV},
    "linear": {"mixer": LINEAR},
    "linear, heads that do not divide": {"mixer": {key: LINEAR[key] for key in LINEAR if key != "head_dim"}},
    "linear with fla's kernels": {"mixer": LINEAR | {"parallel_implementation": "fla_parallel"}},
    "attention": {
        "mixer": {
            **{"_target_": f"{MIXERS}.mha.MHA", "num_heads": 4, "num_heads_kv": 2, "softmax_scale": 0.9},
            **{"rotary_emb_dim": 2, "rotary_emb_base": 50.0, "rotary_emb_interleaved": True},
            **{"causal": True, "window_size": [2, 0], "out_proj_bias": False},
        },
        **{"n_embd": 16, "head_dim": 4, "scale_attn_by_inverse_layer_idx": True, "n_layer": 2},
    },
    "attention of defaults": {"mixer": {"_target_": MHA, "num_heads": 1, "causal": True}},
    "sliding": {  # for which the config wins
        "alt_mixer_2": {
            **{"_target_": f"{MIXERS}.slide_attention.SlidingAttention", "window_size": 5, "num_heads": 4},
            **{"rotary_emb_dim": 2, "softmax_scale": 0.5, "qkv_proj_bias": True, "num_heads_kv": 1},
        },
        **{"alt_mixer_2_layers": [1], "mixer": CONV | {"expand_proj": 4, "kernel_size": 2}, "n_layer": 2},
    },
}
"""Entries of layers whose own arguments differ from what the config says of attention."""

CORE = ["inverse layer scale", "geglu, fc3", "parallel, tied", "linear", "sliding"]
CHOSEN = [*CORE, "gelu_new", "post-norm", "projected", "attention"]
"""The others change the same code in another way."""
TOKENS = np.random.default_rng(1).integers(0, 11, (2, 9))


@pytest.mark.parametrize("case", slow_but(CHOSEN, CASES | ENTRIES, core=CORE))
def test_logits(case, tmp_path):
    config = BASE | {"n_layer": 1} | (CASES | ENTRIES)[case]
    tensors = numpy_gpt.drawn(config)
    meta = {"kind": "attn", "config": config}
    model, params = from_torch(meta, tensors)
    logits, _ = jax.jit(model.apply)(params, array(TOKENS, np.int32))
    assert_close(logits, numpy_gpt.logits(config, tensors, TOKENS), FLOAT32)

    same(to_torch(meta, jax.device_get(params)), tensors)
    loaded, again = load_pretrained(write(tmp_path, config, tensors))
    assert loaded == model
    chex.assert_trees_all_equal(again, params)


@pytest.mark.parametrize("rms_norm", [True, False])
def test_norms_of_older_checkpoints(rms_norm, tmp_path):
    config = BASE | {"rms_norm": rms_norm, "n_layer": 3}
    today = numpy_gpt.drawn(config)
    old = {
        "layers.0.norm1": "ln_0",
        **{f"layers.{i}.norm2": f"layers.{i}.norm1" for i in range(3)},
        **{f"layers.{i + 1}.norm1": f"layers.{i}.norm2" for i in range(2)},
        "ln_f": "layers.2.norm2",
    }
    tensors = {}
    for name, tensor in today.items():
        stem, _, kind = name.removeprefix("transformer.").rpartition(".")
        tensors[f"transformer.{old[stem]}.{kind}" if stem in old else name] = tensor
    assert tensors.keys() != today.keys()
    same(with_norms_before(tensors), today)
    assert with_norms_before(today) == today
    _, params = load_pretrained(write(tmp_path, config, {f"model.{n}": t for n, t in tensors.items()}))
    _, wanted = from_torch({"config": config}, today)
    chex.assert_trees_all_equal(params, wanted)


def test_their_defaults():
    """Of transformers' GPT2Config, where a config says nothing and there are no weights to ask."""
    config = model_config({"n_embd": 8, "n_head": 2, "n_layer": 1}, {})
    assert (config.norm, config.mlp, config.mlp_activation) == ("layer", "plain", "gelu_tanh")
    assert (config.mlp_hidden, config.mlp_bias, config.max_positions) == (32, True, 1024)
    assert (config.embed_dropout, config.residual_dropout, config.residual_in_fp32) == (0.1, 0.1, False)
    options = {"num_heads": 2, "rotary_fraction": 0.0, "qkv_bias": True, "out_bias": True, "dropout": 0.1}
    assert {**config.layer(0).options, **options} == config.layer(0).options


def test_entries_that_only_flash_attention_reads():
    more: dict = {"mlp_multiple_of": 16, "activation_function": "swiglu"}
    attn = model_config(BASE | more | {"window_size": [2, 0]}, {})
    assert (attn.layer(0).mixer, attn.mlp_hidden) == ("sliding_window", 16)
    layers = {"alt_mixer": CONV, "alt_mixer_layers": [1]}
    for name, value in {"window_size": [2, 0], **more}.items():
        if name != "activation_function":
            with pytest.raises(ValueError, match=f"entry of config.json = '{name}': expected one of"):
                model_config(BASE | layers | {name: value}, {})


def test_second_names_of_entries():
    config = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "n_positions": 16}
    renamed = model_config({"n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}, {})
    assert model_config(config, {}) == renamed
    assert renamed.max_positions == 16


def test_a_scale_for_each_of_many_layers():
    config = model_config(BASE | {"n_layer": 40, "scale_attn_by_inverse_layer_idx": True}, {})
    assert [config.layer(i).options.get("scale") for i in (1, 39)] == [0.25, 0.0125]


def test_entries_that_are_refused():
    for changes, message in [
        ({"mixer": CONV | {"_target_": "zoology.mixers.base_conv.BaseConv"}}, "mixer._target_ = 'zoology"),
        ({"mixer": CONV | {"_target_": "MHA"}}, "mixer._target_ = 'MHA': expected one of 'based.models"),
        ({"mixer": {"_target_": MHA, "num_heads": 2}}, "mixer: causal = False: expected true"),
        ({"mixer": {"_target_": MHA, "causal": True}}, "mixer: num_heads = None: expected a positive"),
        ({"mixer": LINEAR | {"feature_map": {"_target_": "x.TaylorExp"}}}, "mixer: feature_map._target_ ="),
        ({"mixer": LINEAR | {"parallel_implementation": "tk"}}, "mixer: parallel_implementation = 'tk'"),
        ({"hidden_size": 16}, "hidden_size = 16: expected 8, another value of n_embd"),
        ({"architectures": ["GPT2LMHeadModel"]}, "that of `transformers` is not supported"),
    ]:
        with pytest.raises(ValueError, match=message):
            model_config(BASE | changes, {})


def test_models_of_other_libraries_are_refused_by_name():
    """Also those whose entries look like Mamba's, and before any weights are read."""
    for kind in ["gemma", "t5", "mamba", "falcon_h1"]:
        width = "d_model" if kind == "t5" else "hidden_size"
        with pytest.raises(ValueError, match=f"model_type = '{kind}': expected a supported model: gpt2, "):
            model_config({"model_type": kind, width: 8, "num_hidden_layers": 1, "num_attention_heads": 2}, {})


def test_widths_that_the_weights_do_not_have():
    config = BASE | {"activation_function": "swiglu"}
    tensors = numpy_gpt.drawn(config)
    with pytest.raises(ValueError, match="wrongly shaped"):
        from_torch({"config": config | {"n_inner": 300}}, tensors)
    with pytest.raises(ValueError, match="mlp_type = 'alt': expected 'base', as the weights are"):
        from_torch({"config": config | {"mlp_type": "alt"}}, tensors)


def test_a_config_that_transformers_wrote():
    """Its n_positions is another name of max_position_embeddings, 0 for no position embeddings."""
    ours = model_config(BASE | {"n_positions": 0, "max_position_embeddings": 0}, {})
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
