"""Entries of configs, at every level: unknown ones are errors, and the others do what the tables say."""

import functools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from based_jax.convert import load_pretrained
from based_jax.convert.configs import model_config
from based_jax.convert.options import default_of, tables
from based_jax.convert.references.zoology_models import language_model
from tests.convert.random_models import changed, layers
from tests.marks import slow_but

BASED = "based.models.mixers"
TAYLOR = f"{BASED}.linear_attention.TaylorExp"
GPT = {
    **{"n_embd": 8, "n_head": 2, "n_layer": 2, "n_inner": 16, "vocab_size": 11, "n_positions": 64},
    **{"activation_function": "swiglu", "rotary_emb_fraction": 0.5, "max_position_embeddings": 0},
}
CONV = {"_target_": f"{BASED}.convolution.BaseConv", "l_max": 64}
LINEAR = {
    **{"_target_": f"{BASED}.linear_attention.LinearAttention", "num_heads": 2, "feature_dim": 4},
    "feature_map": {"_target_": TAYLOR, "input_dim": 4},
}
SLIDING = {"_target_": f"{BASED}.slide_attention.SlidingAttention", "window_size": 4}
MHA = {"_target_": f"{BASED}.mha.MHA", "num_heads": 2, "causal": True, "rotary_emb_dim": 2}
SHORT = {"_target_": f"{BASED}.convolution.ShortConvolution", "kernel_size": 3}
HYBRID = {
    **{"mixer": CONV, "alt_mixer": LINEAR, "alt_mixer_layers": [1]},
    **{"alt_mixer_2": SLIDING, "alt_mixer_2_layers": [2], "n_layer": 3},
}
MAMBA = {
    **{"d_model": 8, "n_layer": 2, "ssm_cfg": {}, "attn_layer_idx": [1], "d_intermediate": 16},
    "attn_cfg": {"num_heads": 2, "causal": True, "rotary_emb_dim": 2},
}
FLA = {
    **{"hidden_size": 8, "num_hidden_layers": 2, "num_heads": 2, "vocab_size": 11, "use_short_conv": True},
    "attn": {"layers": [1], "num_heads": 2},
}
MAMBA2 = {"model_type": "mamba2", "hidden_size": 8, "num_hidden_layers": 2, "head_dim": 4}
LLAMA = {
    **{"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2},
    **{"num_hidden_layers": 2, "vocab_size": 11},
}
QWEN = LLAMA | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
HYBRID_QWEN = {key: value for key, value in LLAMA.items() if key != "model_type"}
HYBRID_QWEN |= {
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "head_dim": 16,
}
QWEN3_5 = {"model_type": "qwen3_5", "text_config": HYBRID_QWEN}
QWEN3_NEXT = HYBRID_QWEN | {"model_type": "qwen3_next", "mlp_only_layers": [0, 1]}
GRANITE = LLAMA | {
    **{"model_type": "granitemoehybrid", "num_local_experts": 0, "mamba_n_heads": 4, "mamba_d_head": 4},
    **{"layer_types": ["mamba", "attention"], "position_embedding_type": "rope"},
}
FALCON_MAMBA = {"model_type": "falcon_mamba", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 11}
JAMBA = LLAMA | {
    **{"model_type": "jamba", "num_experts": 1, "num_hidden_layers": 4},
    **{"attn_layer_period": 2, "attn_layer_offset": 1},
}
NEMOTRON_H = {
    **{"model_type": "nemotron_h", "hidden_size": 8, "hybrid_override_pattern": "M-*"},
    **{"mamba_num_heads": 4, "mamba_head_dim": 4},
}
LFM2 = LLAMA | {"model_type": "lfm2", "full_attn_idxs": [1], "block_multiple_of": 2}
OLMO = {
    **{name: value for name, value in LLAMA.items() if name not in ("head_dim", "mlp_bias")},
    **{"model_type": "olmo_hybrid", "linear_num_key_heads": 2, "linear_num_value_heads": 2},
    "layer_types": ["full_attention", "linear_attention"],
}
ZOOLOGY = {
    **{"d_model": 8, "n_layers": 2, "vocab_size": 11, "max_position_embeddings": 0},
    "sequence_mixer": {"name": "zoology.mixers.h3.h3.H3", "kwargs": {"l_max": 16, "kernel_args": {}}},
    "state_mixer": {"name": "zoology.mixers.mlp.MLP", "kwargs": {"hidden_mult": 2}},
}
WEIGHTS = {"backbone.embeddings.word_embeddings.weight": (11, 8)}


class Level(NamedTuple):
    """A mapping in a config, and the table of the class whose entries it has."""

    config: dict[str, Any]
    keys: tuple[str | int, ...]
    path: str


LEVELS = {
    "attn": Level(GPT, (), "flash_attn.models.gpt.GPTLMHeadModel"),
    "based": Level(GPT | HYBRID, (), "based.models.gpt.GPTLMHeadModel"),
    "based conv": Level(GPT | HYBRID, ("mixer",), CONV["_target_"]),
    "based linear": Level(GPT | HYBRID, ("alt_mixer",), LINEAR["_target_"]),
    "based map": Level(GPT | HYBRID, ("alt_mixer", "feature_map"), TAYLOR),
    "based sliding": Level(GPT | HYBRID, ("alt_mixer_2",), SLIDING["_target_"]),
    "based MHA": Level(GPT | {"mixer": MHA}, ("mixer",), MHA["_target_"]),
    "based short": Level(GPT | {"mixer": SHORT}, ("mixer",), SHORT["_target_"]),
    "mamba": Level(MAMBA, (), "mamba_ssm.models.config_mamba.MambaConfig"),
    "mamba layer": Level(MAMBA, ("ssm_cfg",), "mamba_ssm.modules.mamba_simple.Mamba"),
    "mamba attention": Level(MAMBA, ("attn_cfg",), "mamba_ssm.modules.mha.MHA"),
    "gla": Level(FLA | {"model_type": "gla"}, (), "fla.models.GLAConfig"),
    "retnet": Level(FLA | {"model_type": "retnet"}, (), "fla.models.RetNetConfig"),
    "delta_net": Level(FLA | {"model_type": "delta_net"}, (), "fla.models.DeltaNetConfig"),
    "gated_deltanet": Level(
        FLA | {"model_type": "gated_deltanet", "head_dim": 4}, (), "fla.models.GatedDeltaNetConfig"
    ),
    "fla attention": Level(FLA | {"model_type": "gla"}, ("attn",), "fla.layers.attn.Attention"),
    "mamba2": Level(MAMBA2, (), "fla.models.Mamba2Config"),
    "llama": Level(LLAMA, (), "transformers.LlamaConfig"),
    "falcon_mamba": Level(FALCON_MAMBA, (), "transformers.FalconMambaConfig"),
    "granite": Level(GRANITE, (), "transformers.GraniteMoeHybridConfig"),
    "jamba": Level(JAMBA, (), "transformers.JambaConfig"),
    "lfm2": Level(LFM2, (), "transformers.Lfm2Config"),
    "nemotron_h": Level(NEMOTRON_H, (), "transformers.NemotronHConfig"),
    "olmo_hybrid": Level(OLMO, (), "transformers.OlmoHybridConfig"),
    "mistral": Level(LLAMA | {"model_type": "mistral"}, (), "transformers.MistralConfig"),
    "qwen2": Level(QWEN | {"model_type": "qwen2"}, (), "transformers.Qwen2Config"),
    "qwen3": Level(QWEN | {"model_type": "qwen3"}, (), "transformers.Qwen3Config"),
    "qwen3_5": Level(QWEN3_5, (), "transformers.Qwen3_5Config"),
    "qwen3_5 text": Level(QWEN3_5, ("text_config",), "transformers.Qwen3_5TextConfig"),
    "qwen3_next": Level(QWEN3_NEXT, (), "transformers.Qwen3NextConfig"),
    "zoology": Level(ZOOLOGY, (), "zoology.config.ModelConfig"),
    "zoology mixer": Level(ZOOLOGY, ("sequence_mixer", "kwargs"), "zoology.mixers.h3.h3.H3"),
    "zoology kernel": Level(
        ZOOLOGY, ("sequence_mixer", "kwargs", "kernel_args"), "zoology.mixers.h3.ss_kernel.SSKernel"
    ),
    "zoology MLP": Level(ZOOLOGY, ("state_mixer", "kwargs"), "zoology.mixers.mlp.MLP"),
}

CORE = [
    "based linear",
    "based MHA",
    "mamba layer",
    "qwen3",
    "qwen3_5 text",
    "fla attention",
    "zoology kernel",
]

WITHOUT_TABLE = {
    "attention of fla, listed": (FLA | {"model_type": "gla", "attn": [FLA["attn"]]}, ("attn", 0)),
    "scaling of rotary positions": (
        LLAMA | {"rope_parameters": {"rope_type": "default"}},
        ("rope_parameters",),
    ),
    "unused layer": (GPT | HYBRID | {"alt_mixer_2_layers": None}, ("alt_mixer_2",)),
    "unused attention": (MAMBA | {"attn_layer_idx": []}, ("attn_cfg",)),
    "module of zoology": (ZOOLOGY, ("sequence_mixer",)),
    "MLP of zoology": (ZOOLOGY, ("state_mixer",)),
}


def read(config: dict[str, Any]) -> tuple:
    """The model of a config: its layers with their defaults, and the other fields."""
    return _read(json.dumps(config))


@functools.cache
def _read(text: str) -> tuple:
    config = json.loads(text)
    is_zoology = "sequence_mixer" in config
    found = language_model(config, WEIGHTS).config if is_zoology else model_config(config, {})
    rest = {key: value for key, value in found.to_dict().items() if key not in ("mixers", "schedule")}
    return layers(found), rest


def with_entry(config: dict[str, Any], keys: tuple[str | int, ...], **entries: Any) -> dict[str, Any]:
    """A copy of a config with these entries at a level."""
    config = json.loads(json.dumps(config))
    target: Any = config
    for key in keys:
        target = target[key]
    target |= entries
    return config


def test_unknown_entries_are_errors():
    for config, keys, *_ in (LEVELS | WITHOUT_TABLE).values():
        read(config)
        with pytest.raises(ValueError, match=r"entry of .* = 'no_such_entry': expected one of"):
            read(with_entry(config, keys, no_such_entry=1))


def test_heads_that_are_no_number_are_named():
    for heads in (0, None, "7", []):
        with pytest.raises(ValueError, match=r"num_attention_heads = .*: expected .* integer"):
            read(NEMOTRON_H | {"num_attention_heads": heads})


def test_unknown_entries_of_our_own_form(tmp_path):
    config = {"format": "based_jax", "version": 1, "model": {}, "no_such_entry": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"entry of config\.json = 'no_such_entry': expected one of"):
        load_pretrained(tmp_path)


WITH: dict[str, dict[str, Any]] = {
    "based.ff_mult": {"mlp_type": "alt", "n_embd": 384, "n_head": 4},
    "attn.ff_mult": {"mlp_type": "alt", "n_embd": 384, "n_head": 4},
    "based.n_inner": {"n_inner": 256},
    "attn.n_inner": {"n_inner": 256},
    "attn.n_positions": {"max_position_embeddings": None},
    "based.parallel_block_tied_norm": {"parallel_block": True},
    "attn.parallel_block_tied_norm": {"parallel_block": True},
    "attn.mlp_multiple_of": {"mlp_multiple_of": 8, "n_inner": 24},
    "based.mlp_type": {"n_embd": 384, "n_head": 4},
    "attn.mlp_type": {"n_embd": 384, "n_head": 4},
    "attn.alt_mixer": {"alt_mixer_layers": [1]},
    "attn.alt_mixer_layers": {"alt_mixer": SHORT},
    "attn.alt_mixer_2": {"alt_mixer_2_layers": [1]},
    "attn.alt_mixer_2_layers": {"alt_mixer_2": SHORT},
    "zoology kernel.efficient_bidirectional": {"mode": "ema"},
    "zoology kernel.dt_tie": {"mode": "ema"},
    "mamba.d_intermediate": {"d_intermediate": 128},
    "qwen3_next.num_experts": {"num_experts": 0, "mlp_only_layers": []},
    "qwen3_next.decoder_sparse_step": {"mlp_only_layers": [], "decoder_sparse_step": 3},
    "gla.hidden_ratio": {"hidden_size": 256},
    "retnet.hidden_ratio": {"hidden_size": 256},
    "delta_net.hidden_ratio": {"hidden_size": 256},
    "gated_deltanet.hidden_ratio": {"hidden_size": 256},
}
"""Entries that make another one of the level matter, or large enough for it to matter."""

CHANGED: dict[str, Any] = {
    **{"activation_function": "geglu", "alt_mixer_layers": [0], "alt_mixer_2_layers": [0]},
    **{
        "mixer": SHORT,
        "alt_mixer": SHORT,
        "alt_mixer_2": SHORT,
        "window_size": [2, 0],
        "attn_layer_idx": [0],
    },
    **{"feature_map": {"_target_": TAYLOR, "input_dim": 8}, "kernel_args": {"mode": "ema"}},
    **{
        "ssm_cfg": {"d_state": 4},
        "attn": None,
        "layers": [0],
        "attn_layer_idx": [0],
        "dt_limit": [0.5, 1],
        "dt_rank": 3,
    },
    **{"state_mixer": {"name": "zoology.mixers.mlp.GLU", "kwargs": {"hidden_mult": 2}}},
    **{"sequence_mixer": {"name": "zoology.mixers.attention.MHA"}, "block_type": "MambaBlock"},
    **{"embedding_init_type": "normal", "activation": "relu", "parallel_implementation": "fla_chunk"},
    **{"max_position_embeddings": 4, "qk_norm": "sum", "qk_activation": "relu", "mixer_layers": [0]},
    **{"layer": "Mamba2", "dt_init": "constant", "gla.feature_map": "relu", "retnet.feature_map": "relu"},
    **{"decoder_sparse_step": 1, "full_attention_interval": 1, "text_config": LLAMA},
    **{"based sliding.window_size": 8, "fla attention.window_size": 8},
}
"""Values instead of twice the default, of an entry or of that of a level."""

CONFIGS_OWN = {
    *("num_heads", "num_heads_kv", "qkv_proj_bias", "out_proj_bias", "dropout", "softmax_scale"),
    *("rotary_emb_dim", "rotary_emb_base", "rotary_emb_interleaved"),
}
"""Arguments of sliding windows that the config's attention replaces, as in Based's code."""

OF_WEIGHTS = {"embedding_multiplier", "logits_scaling", "residual_multiplier"}
"""Entries that change weights, not the model; tests/convert/test_transformers.py compares logits."""

GIVEN = {"d_model", "embed_dim"}
"""Arguments that the model gives its mixers."""


def outcomes(name: str) -> Iterator[tuple[str, str, str]]:
    """Every entry of a level: its name, its status, and what another value does."""
    level = LEVELS[name]
    for entry, option in tables()[level.path].items():
        if level.keys and entry in GIVEN:
            continue
        config = with_entry(level.config, level.keys, **WITH.get(f"{name}.{entry}", {}))
        given: Any = config
        for key in level.keys:
            given = given[key]
        value = changed(given.get(entry, default_of(option)))
        value = CHANGED.get(f"{name}.{entry}", CHANGED.get(entry, value))
        try:
            is_same = read(with_entry(config, level.keys, **{entry: value})) == read(config)
        except ValueError:
            yield entry, option.status, "refused"
        else:
            yield entry, option.status, "same" if is_same else "changed"


@pytest.mark.parametrize("name", slow_but(CORE, LEVELS))
def test_entries_do_what_the_tables_say(name):
    expected = {"ignored": {"same"}, "refused": {"refused"}}
    wrong = [
        (entry, status, found)
        for entry, status, found in outcomes(name)
        if found not in expected.get(status, {"changed", "refused"})
    ]
    if name == "based sliding":
        wrong = [row for row in wrong if row[0] not in CONFIGS_OWN]
    elif name == "granite":
        wrong = [row for row in wrong if row[0] not in OF_WEIGHTS]
    assert not wrong
