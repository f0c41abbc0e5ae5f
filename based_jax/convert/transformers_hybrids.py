"""Read the layers of hybrid models from the config.json of `transformers`, dense models only.

In the layers without attention LFM2 has gated short convolutions, Granite 4.0-H Mamba-2, and Qwen3.5 and
Qwen3-Next have Gated DeltaNets.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from based_jax.convert.config_values import Config, delta_heads, flag, layers_of, number, size
from based_jax.convert.fla_layers import step_limits
from based_jax.convert.options import mixer_spec
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice

QWEN = ("qwen3_5", "qwen3_5_text", "qwen3_next")
Options = dict[str, Any]
Layers = tuple[list[MixerSpec], Options]
"""Each layer's mixer, and further fields of `ModelConfig`."""


def _lfm2(config: Config, options: Options, attention: Options) -> Layers:
    bias, full = flag(config, "conv_bias", False), config["full_attn_idxs"]
    gates: dict[str, Any] = {"expand": 2, "gate_input": True, "bias": bias, "conv_bias": bias}
    mixers = {
        "full_attention": mixer_spec("attention", options, **attention),
        "conv": mixer_spec("gated_conv", options, **gates),
    }
    fits = full is None or isinstance(full, list)
    expect(fits, "full_attn_idxs", full, "a list of layers, or null for all of them")
    layers = range(config["num_hidden_layers"])
    usual = ["full_attention" if full is None or index in full else "conv" for index in layers]
    return layers_of(config, mixers, usual), {"mlp_hidden": _lfm2_hidden(config)}


def _lfm2_hidden(config: Config) -> int:
    """Return the MLP's width as computed by their constructor."""
    hidden = config["intermediate_size"]
    if not flag(config, "block_auto_adjust_ff_dim", True):
        return hidden
    hidden = int(2 * hidden / 3)
    if config["block_ffn_dim_multiplier"] is None:
        return hidden
    multiple = size(config, "block_multiple_of", 256)
    return -(-int(hidden * number(config, "block_ffn_dim_multiplier", 1.0)) // multiple) * multiple


def _granite(config: Config, options: Options, attention: Options) -> Layers:
    experts = config["num_local_experts"]
    expect(experts == 0, "num_local_experts", experts, "0: experts are not supported")
    expect_choice("position_embedding_type", config["position_embedding_type"], (None, "nope", "rope"))
    heads = size(config, "mamba_n_heads", 128)
    channels = int(number(config, "mamba_expand", 2) * config["hidden_size"])
    width = channels // heads if config["mamba_d_head"] == "auto" else size(config, "mamba_d_head", 64)
    expect(heads * width == channels, "mamba_n_heads", heads, f"{channels} / {width} channels of a head")
    usual = attention["head_dim"] ** -0.5  # `scale` has a factor of their rotary positions beside it
    attention["scale"] = number(config, "attention_multiplier", 1.0) * attention.get("scale", usual) / usual
    full = mixer_spec("attention", options, **attention)
    steps = step_limits(config, "time_step_limit")
    mamba = mixer_spec("mamba2", options, head_dim=width, norm_groups=1, **steps)
    mixers = {"mamba": mamba, "attention": full, "linear_attention": mamba, "full_attention": full}
    return layers_of(config, mixers, ["mamba"] * config["num_hidden_layers"]), {}


def _qwen(config: Config, options: Options, attention: Options) -> Layers:
    count, dense = config["num_hidden_layers"], config.get("mlp_only_layers") or []
    experts, step = size(config, "num_experts", 0, least=0), size(config, "decoder_sparse_step", 1)
    expect(isinstance(dense, list), "mlp_only_layers", dense, "a list of layers")
    sparse = [index for index in range(count) if index not in dense and (index + 1) % step == 0]
    expected = f"0, or {sparse} in mlp_only_layers: experts are not supported"
    expect(not (experts and sparse), "num_experts", experts, expected)
    attention |= {"num_heads": config["num_attention_heads"], "use_gate": True}
    mixers = {
        "full_attention": mixer_spec("attention", options, **attention),
        "linear_attention": mixer_spec(
            "gated_delta_net", options, **delta_heads(config["hidden_size"], *linear_sizes(config))
        ),
    }
    interval = size(config, "full_attention_interval", 4)
    usual = ["linear_attention" if index % interval else "full_attention" for index in range(1, count + 1)]
    return layers_of(config, mixers, usual), {}


def linear_sizes(config: Config) -> list[int]:
    """Return the heads and channels of keys, then of values, in Qwen's layers without attention."""
    names = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")
    return [size(config, f"linear_{name}", 0) for name in names]


def with_multipliers(config: Config, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Multiply weights, under Llama's names, by the multipliers that Granite has for activations.

    The final norm then undoes the multiplier of an embedding that is the head too.

    Raises:
        ValueError: a multiplier that is not positive.
    """
    embedding, residual, logits = (
        number(config, name, 1.0)
        for name in ("embedding_multiplier", "residual_multiplier", "logits_scaling")
    )
    expect(embedding > 0, "embedding_multiplier", embedding, "a positive number")
    expect(logits > 0, "logits_scaling", logits, "a positive number")
    of_head = embedding if flag(config, "tie_word_embeddings", False) else 1.0
    factors = {"model.embed_tokens.": embedding, "lm_head.": of_head, "model.norm.": 1 / (of_head * logits)}
    factors |= dict.fromkeys((".o_proj.", ".out_proj.", ".down_proj."), residual)
    found = dict(tensors)
    for key, tensor in tensors.items():
        factor = next((factor for part, factor in factors.items() if part in key), 1.0)
        if factor != 1:
            found[key] = np.asarray(tensor, np.float32) * factor
    return found


HYBRIDS: dict[str, Callable[[Config, Options, Options], Layers]] = {
    "granitemoehybrid": _granite,
    "lfm2": _lfm2,
    **dict.fromkeys(QWEN, _qwen),
}
"""`model_type` -> function of a config, our options and those of its softmax attention."""
