"""Read the layers of hybrid models from the config.json of `transformers`."""

from collections.abc import Callable
from typing import Any

from based_jax.convert.config_values import Config, flag, layers_of, number, size
from based_jax.convert.options import mixer_spec
from based_jax.models import MixerSpec
from based_jax.validate import expect


def _lfm2(
    config: Config, options: dict[str, Any], attention: dict[str, Any]
) -> tuple[list[MixerSpec], dict[str, Any]]:
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


Reader = Callable[[Config, dict[str, Any], dict[str, Any]], tuple[list[MixerSpec], dict[str, Any]]]
"""From a config, our options and those of softmax attention to each layer's mixer, and further fields."""

HYBRIDS: dict[str, Reader] = {"lfm2": _lfm2}
"""By `model_type`."""
