"""Convert Falcon-Mamba, Jamba, Nemotron-H and Granite 4.0-H of `transformers`: layers, weights that differ.

Falcon-Mamba has Mamba alone, in blocks without an MLP; Jamba Mamba or attention, and Granite 4.0-H Mamba-2 or
attention, each with a SwiGLU MLP; Nemotron-H has blocks of Mamba-2, attention or an MLP alone. Only dense
models are read. `transformers.FAMILIES` has what else is special about them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from based_jax.convert.fla import step_limits
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import (
    Config,
    Layers,
    Options,
    flag,
    fraction,
    layers_of,
    mixer_spec,
    number,
    size,
)
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice

_KINDS = {"M": "linear_attention", "-": "mlp", "*": "full_attention"}
"""Nemotron-H's letters of layers."""
NEMOTRON_H_ALIASES = {
    **{"attention_head_dim": "head_dim", "layers_block_type": "layer_types"},
    **{"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias"},
    **{"mamba_dt_min": "time_step_min", "mamba_dt_max": "time_step_max"},
    **{"mamba_dt_limit": "time_step_limit", "mamba_dt_init_floor": "time_step_floor"},
    **{"mamba_expand": "expand", "mamba_chunk_size": "chunk_size"},
}
"""Nemotron-H's names in older versions, which its class still takes."""


def falcon_mamba(config: Config, options: Options, attention: Options) -> Layers:
    """Return the layers of Falcon-Mamba, and further fields of `ModelConfig`."""
    width = config["hidden_size"]
    channels = size(config, "intermediate_size", int(number(config, "expand", 2) * width))
    spec = _mamba(options, map_norm="plain", expand=fraction(channels, width))
    return [spec] * config["num_hidden_layers"], {"mlp": "none"}


def jamba(config: Config, options: Options, attention: Options) -> Layers:
    """Return the layers of Jamba."""
    experts = config["num_experts"]
    expect(experts == 1, "num_experts", experts, "1: experts are not supported")
    period, offset = size(config, "attn_layer_period", 8), size(config, "attn_layer_offset", 4, least=0)
    expect(offset < period, "attn_layer_offset", offset, f"less than attn_layer_period = {period}")
    full = mixer_spec("attention", options, **attention)
    spec = _mamba(options, map_norm="learned", map_norm_eps=options["norm_eps"])
    layers = range(config["num_hidden_layers"])
    return [full if index % period == offset else spec for index in layers], {}


def _mamba(options: Options, **more: Any) -> MixerSpec:
    is_usual = options["dt_rank"] == "auto"
    return mixer_spec("mamba", options | ({"dt_rank": None} if is_usual else {}), **more)


def nemotron_h_entries(given: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of Nemotron-H with its layers' kinds, for which there may be letters, and number."""
    kinds, letters = given.get("layer_types"), given.get("hybrid_override_pattern")
    if kinds is None:
        fits = isinstance(letters, str) and letters and set(letters) <= set(_KINDS)
        expected = f"letters {' '.join(_KINDS)} of the layers: experts (E) are not supported"
        expect(bool(fits), "hybrid_override_pattern", letters, expected)
        kinds = [_KINDS[letter] for letter in letters or ""]
    fits = isinstance(kinds, list) and "moe" not in kinds
    expect(fits, "layer_types", kinds, "a list of the layers' kinds: experts (moe) are not supported")
    return given | {"layer_types": kinds, "num_hidden_layers": len(kinds)}


def nemotron_h(config: Config, options: Options, attention: Options) -> Layers:
    """Return the layers of Nemotron-H, and further fields of `ModelConfig`."""
    heads, head_dim = size(config, "mamba_num_heads", 128), size(config, "mamba_head_dim", 64)
    channels: Options = {"head_dim": head_dim, "expand": fraction(heads * head_dim, config["hidden_size"])}
    of_mlp: Options = {"activation": "squared_relu", "bias": flag(config, "mlp_bias", False)}
    full = mixer_spec("attention", options, **attention)
    mamba = mixer_spec("mamba2", options, **channels, bias=flag(config, "use_bias", False))
    mixers = {
        **{"linear_attention": mamba, "full_attention": full, "mlp": mixer_spec("mlp", options, **of_mlp)},
        **{"mamba": mamba, "attention": full},  # in older versions
    }
    return layers_of(config, mixers, config["layer_types"]), {"mlp": "none"}


def granite(config: Config, options: Options, attention: Options) -> Layers:
    """Return the layers of Granite 4.0-H, and further fields of `ModelConfig`."""
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
    mamba = mixer_spec("mamba2", options, head_dim=width, **steps)
    mixers = {"mamba": mamba, "attention": full, "linear_attention": mamba, "full_attention": full}
    return layers_of(config, mixers, ["mamba"] * config["num_hidden_layers"]), {}


def with_multipliers(config: Config, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Multiply weights, under Llama's names, by the multipliers that Granite has for activations.

    The final norm then undoes the multiplier of an embedding that is the head too.
    """
    factors = _factors(config, tensors)
    return {
        key: np.asarray(tensor, np.float32) * factors[key] if key in factors else tensor
        for key, tensor in tensors.items()
    }


def without_multipliers(config: Config, tensors: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Invert `with_multipliers`. ValueError: a multiplier of 0, which cannot be undone."""
    del shapes
    factors = _factors(config, tensors)
    expect(0 not in factors.values(), "residual_multiplier", 0, "a positive number, to divide by")
    return {
        key: np.asarray(tensor, np.float32) / factors[key] if key in factors else tensor
        for key, tensor in tensors.items()
    }


def _factors(config: Config, keys: Iterable[str]) -> dict[str, np.float32]:
    """Return the factors of Granite's tensors other than 1."""
    embedding, residual, logits = (
        number(config, name, 1.0)
        for name in ("embedding_multiplier", "residual_multiplier", "logits_scaling")
    )
    expect(embedding > 0, "embedding_multiplier", embedding, "a positive number")
    expect(logits > 0, "logits_scaling", logits, "a positive number")
    of_head = embedding if flag(config, "tie_word_embeddings", False) else 1.0
    factors = {"model.embed_tokens.": embedding, "lm_head.": of_head, "model.norm.": 1 / (of_head * logits)}
    factors |= dict.fromkeys((".o_proj.", ".out_proj.", ".down_proj."), residual)
    found = ((key, factor) for key in keys for part, factor in factors.items() if part in key)
    return {key: np.float32(factor) for key, factor in found if factor != 1}
