"""Convert Falcon-Mamba, Jamba and Nemotron-H of `transformers`: the layers of a config.json.

Falcon-Mamba has Mamba alone, in blocks without an MLP; Jamba Mamba or attention, each with a SwiGLU MLP; and
Nemotron-H blocks of Mamba-2, attention or an MLP alone. None has positions. Of the last two only dense models
are read. `transformers.FAMILIES` has what else is special about them.
"""

from typing import Any

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
from based_jax.validate import expect

_KINDS = {"M": "linear_attention", "-": "mlp", "*": "full_attention"}
"""Nemotron-H's letters of layers."""


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
