"""Read a layer's mixer from the authors' config.json (flash-attention's GPT, and Based's)."""

from collections.abc import Callable
from typing import Any

from based_jax.convert.entries import Config, fraction, number, size
from based_jax.convert.layouts import Shapes
from based_jax.convert.options.check import expect_known_entry
from based_jax.convert.tables import AUTHORS
from based_jax.models import MixerSpec
from based_jax.ops import left_from_torch_window
from based_jax.validate import expect

SLOTS = ("mixer", "alt_mixer", "alt_mixer_2")
"""Entries that hold a mixer; later ones take precedence in the layers listed in their entry NAME_layers."""


def layer_mixer(config: Config, index: int, shapes: Shapes) -> MixerSpec:
    """Return the mixer of one layer.

    Raises:
        ValueError: an unsupported mixer or option.
    """
    listed = [slot for slot in SLOTS[1:] if index in (config.get(f"{slot}_layers") or ())]
    name = listed[-1] if listed else SLOTS[0]
    options = config.get(name) or {"_target_": "MHA"}
    target = _target(options)
    expect(target in _MIXERS, f"{name}._target_", options.get("_target_"), "one of " + ", ".join(_MIXERS))
    expect_known_entry(target, options, name)
    prefix = f"{AUTHORS.layer(index)}.{AUTHORS.mixer}."
    own = {key.removeprefix(prefix): shape for key, shape in shapes.items() if key.startswith(prefix)}
    return _MIXERS[target](config, options, own, index)


def _target(entry: Config, default: str = "") -> str:
    """Return the last component of the import path of the class that an entry names."""
    return str(entry.get("_target_", default)).rpartition(".")[2]


def _gated_conv(config: Config, options: Config, shapes: Shapes, index: int) -> MixerSpec:
    sizes = {"expand": size(options, "expand_proj", 4), "kernel_size": size(options, "kernel_size", 3)}
    # Only models built with the CUDA convolution have a bias.
    conv_bias = "conv.conv.bias" in shapes if shapes else bool(options.get("use_cuda"))
    return MixerSpec("gated_conv", {**sizes, "bias": options.get("use_bias", True), "conv_bias": conv_bias})


def _linear_attention(config: Config, options: Config, shapes: Shapes, index: int) -> MixerSpec:
    feature_map = options.get("feature_map") or {}
    is_taylor = isinstance(feature_map, dict) and _target(feature_map, "TaylorExp") == "TaylorExp"
    expect(is_taylor, "feature_map", feature_map, "TaylorExp: other feature maps are not supported")
    path = str(options.get("parallel_implementation", "quadratic"))
    expect(path != "tk", "parallel_implementation", path, "one with a normaliser: the tk models lack it")
    sizes = {name: size(options, name, 16) for name in ("num_heads", "feature_dim")}
    eps = 1e-6 if "fla" in path else number(options, "eps", 1e-12)
    return MixerSpec("linear_attention", {**sizes, "eps": eps})


def _sliding_window(config: Config, options: Config, shapes: Shapes, index: int) -> MixerSpec:
    left = left_from_torch_window(size(options, "window_size", 128, least=0))
    return MixerSpec("sliding_window", {"left": left, **_heads(config, shapes, index)})


def _attention(config: Config, options: Config, shapes: Shapes, index: int) -> MixerSpec:
    is_based = any(config.get(slot) for slot in SLOTS)  # Based's code does not read the window
    window = (-1, -1) if is_based else config.get("window_size") or (-1, -1)
    is_pair = isinstance(window, list | tuple) and len(window) == 2 and all(type(n) is int for n in window)
    fits = is_pair and window[0] >= -1 and window[1] in (-1, 0)
    expect(fits, "window_size", window, "[left, -1] or [left, 0], left at least -1: attention is causal")
    heads = _heads(config, shapes, index)
    if window[0] < 0:
        return MixerSpec("attention", heads)
    return MixerSpec("sliding_window", {"left": window[0], **heads})


_MIXERS: dict[str, Callable[[Config, Config, Shapes, int], MixerSpec]] = {
    "BaseConv": _gated_conv,
    "LinearAttention": _linear_attention,
    "SlidingAttention": _sliding_window,
    "MHA": _attention,
}
"""Last component of `_target_` -> function of the config, the mixer's entry, the tensor shapes, the layer."""


def _heads(config: Config, shapes: Shapes, index: int) -> dict[str, Any]:
    heads = config["n_head"]
    width = config["n_embd"] // heads
    # This entry affects the scale and the rotary channels, not the heads' width.
    nominal = size(config, "head_dim", width)
    share = number(config, "rotary_emb_fraction", 0.0)
    options: dict[str, Any] = {
        "num_heads": heads,
        "rotary_fraction": share if nominal == width else fraction(int(share * nominal), width),
        "qkv_bias": config.get("qkv_proj_bias", "Wqkv.bias" in shapes if shapes else True),
        "out_bias": config.get("out_proj_bias", "out_proj.bias" in shapes if shapes else True),
    }
    if config.get("n_head_kv") is not None:
        options["num_kv_heads"] = size(config, "n_head_kv", 0)
    if config.get("rotary_emb_base") is not None:
        options["rotary_base"] = number(config, "rotary_emb_base", 0)
    if config.get("rotary_emb_interleaved") is not None:
        options["rotary_interleaved"] = bool(config["rotary_emb_interleaved"])
    if dropout := number(config, "attn_pdrop", 0.1):
        options["dropout"] = dropout
    scale = nominal**-0.5 if config.get("scale_attn_weights", True) else 1.0
    if config.get("scale_attn_by_inverse_layer_idx", False):
        scale /= index + 1
    return options if scale == width**-0.5 else {**options, "scale": scale}
