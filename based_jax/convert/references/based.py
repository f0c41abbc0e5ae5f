"""Based's mixers, and flash-attention's attention, from the arguments of their constructors.

Fixtures give these arguments, and so do the entries of a config.json (`authors_layers`).
"""

from typing import Any

from based_jax.convert.config_values import flag, fraction, number, size
from based_jax.convert.references.linear_attention import linear_attention
from based_jax.convert.references.mixer import Meta, TorchMixer
from based_jax.convert.tables import GATED_CONV, LINEAR_ATTENTION, SHORT_CONV, SOFTMAX_ATTENTION
from based_jax.models import MixerSpec
from based_jax.ops import left_from_torch_window
from based_jax.validate import expect


def _base_conv(meta: Meta) -> MixerSpec:
    options = {"expand": size(meta, "expand_proj", 2), "kernel_size": size(meta, "kernel_size", 3)}
    conv_bias = flag(meta, "conv_bias", flag(meta, "use_cuda", False))
    return MixerSpec("gated_conv", options | {"bias": flag(meta, "use_bias", True), "conv_bias": conv_bias})


def _short_convolution(meta: Meta) -> MixerSpec:
    options = {"kernel_size": required(meta, "kernel_size"), "bias": flag(meta, "conv_bias", False)}
    return MixerSpec("short_conv", options)


def _sliding(meta: Meta) -> MixerSpec:
    left = left_from_torch_window(size(meta, "window_size", 128, least=0))
    expect(meta.get("window_left", left) == left, "window_left", meta.get("window_left"), f"{left}")
    return MixerSpec("sliding_window", {"left": left, **_heads(meta)})


def _mha(meta: Meta) -> MixerSpec:
    causal = flag(meta, "causal", False)
    expect(causal, "causal", causal, "true: attention is causal, and their default is false")
    window: Any = meta.get("window_size") or (-1, -1)
    is_pair = isinstance(window, list | tuple) and len(window) == 2 and all(type(n) is int for n in window)
    fits = is_pair and window[0] >= -1 and window[1] in (-1, 0)
    expect(fits, "window_size", window, "[left, -1] or [left, 0], left at least -1: attention is causal")
    if window[0] < 0:
        return MixerSpec("attention", _heads(meta))
    return MixerSpec("sliding_window", {"left": window[0], **_heads(meta)})


def _heads(meta: Meta) -> dict[str, Any]:
    """Return options of a packed-projection attention, in any spelling of fixtures; those not given: none."""
    for name, value in {"cross_attn": False, "dwconv": False, "use_alibi": False}.items():
        expect(meta.get(name, value) == value, name, meta.get(name), f"{value}")
    xpos = meta.get("rotary_emb_scale_base")
    expect(xpos is None, "rotary_emb_scale_base", xpos, "None: xPos is not supported")
    heads = required(meta, "num_heads")
    width = max(meta["d_model"] // heads, 1)
    turned = size(meta, "rotary_emb_dim", 0, least=0, most=width)
    options: dict[str, Any] = {
        "num_heads": heads,
        "rotary_fraction": fraction(turned, width),
        "qkv_bias": flag(meta, "qkv_proj_bias", flag(meta, "bias", True)),
        "out_bias": flag(meta, "out_proj_bias", flag(meta, "bias", True)),
    }
    if (kv_heads := size(meta, "num_heads_kv", None)) is not None:
        options["num_kv_heads"] = kv_heads
    for name in ("rotary_emb_base", "rotary_base"):
        if meta.get(name) is not None:
            options["rotary_base"] = number(meta, name, 0)
    for name in ("rotary_emb_interleaved", "rotary_interleaved"):
        if meta.get(name) is not None:
            options["rotary_interleaved"] = flag(meta, name, False)
    if dropout := number(meta, "dropout", 0.0):
        options["dropout"] = dropout
    usual = width**-0.5
    is_described = meta.get("softmax_scale") == "head_dim**-0.5"
    scale = usual if is_described else number(meta, "softmax_scale", usual)
    return options if abs(scale - usual) < 1e-12 * usual else {**options, "scale": scale}


def required(meta: Meta, name: str) -> int:
    """Return a positive integer that has no default."""
    value = size(meta, name, 0)
    expect(value > 0, name, meta.get(name), "a positive integer")
    return value


BASE_CONV = "based.models.mixers.convolution.BaseConv"
ATTENTION = "flash_attn.modules.mha.MHA"

MIXERS: dict[str, TorchMixer] = {
    BASE_CONV: TorchMixer(_base_conv, GATED_CONV),
    "based.models.mixers.convolution.ShortConvolution": TorchMixer(_short_convolution, SHORT_CONV),
    "based.models.mixers.linear_attention.LinearAttention": TorchMixer(linear_attention, LINEAR_ATTENTION),
    "based.models.mixers.slide_attention.SlidingAttention": TorchMixer(_sliding, SOFTMAX_ATTENTION),
    "based.models.mixers.mha.MHA": TorchMixer(_mha, SOFTMAX_ATTENTION),
    ATTENTION: TorchMixer(_mha, SOFTMAX_ATTENTION),
}
"""By import path."""
