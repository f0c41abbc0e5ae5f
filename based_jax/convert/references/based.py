"""Based's mixers, and flash-attention's attention, from the arguments of their constructors.

Fixtures give these arguments, and so do the entries of a config.json (`authors_layers`).
"""

from typing import Any

from based_jax.convert.config_values import Config as Meta
from based_jax.convert.config_values import flag, fraction, number, size
from based_jax.ops import left_from_torch_window
from based_jax.validate import expect

BASE_CONV = "based.models.mixers.convolution.BaseConv"
ATTENTION = "flash_attn.modules.mha.MHA"


def _base_conv(meta: Meta, options: dict[str, Any]) -> dict[str, Any]:
    return {"conv_bias": flag(meta, "conv_bias", flag(meta, "use_cuda", False))}


def _sliding(meta: Meta, options: dict[str, Any]) -> dict[str, Any]:
    left = left_from_torch_window(size(meta, "window_size", 128, least=0))
    expect(meta.get("window_left", left) == left, "window_left", meta.get("window_left"), f"{left}")
    return {"left": left, **_heads(meta)}


def _mha(meta: Meta, options: dict[str, Any]) -> dict[str, Any]:
    causal = flag(meta, "causal", False)
    expect(causal, "causal", causal, "true: attention is causal, and their default is false")
    window: Any = meta.get("window_size") or (-1, -1)
    is_pair = isinstance(window, list | tuple) and len(window) == 2 and all(type(n) is int for n in window)
    fits = is_pair and window[0] >= -1 and window[1] in (-1, 0)
    expect(fits, "window_size", window, "[left, -1] or [left, 0], left at least -1: attention is causal")
    more = {} if window[0] < 0 else {"mixer": "sliding_window", "left": window[0]}
    return _heads(meta) | more


def _heads(meta: Meta) -> dict[str, Any]:
    """Return options of packed attention that depend on its width, or that fixtures spell otherwise."""
    heads = size(meta, "num_heads", 0)
    expect(heads > 0, "num_heads", meta.get("num_heads"), "a positive integer")
    width = max(meta["d_model"] // heads, 1)
    usual = width**-0.5
    is_described = meta.get("softmax_scale") == "head_dim**-0.5"
    scale = usual if is_described else number(meta, "softmax_scale", usual)
    options: dict[str, Any] = {
        "rotary_fraction": fraction(size(meta, "rotary_emb_dim", 0, least=0, most=width), width),
        "scale": None if abs(scale - usual) < 1e-12 * usual else scale,
        "qkv_bias": flag(meta, "qkv_proj_bias", flag(meta, "bias", True)),
        "out_bias": flag(meta, "out_proj_bias", flag(meta, "bias", True)),
    }
    spelled = {name: meta[name] for name in ("rotary_base", "rotary_interleaved") if name in meta}
    return options | spelled


CONVERTED = {
    BASE_CONV: _base_conv,
    "based.models.mixers.slide_attention.SlidingAttention": _sliding,
    "based.models.mixers.mha.MHA": _mha,
    ATTENTION: _mha,
}
"""By import path; see `mixers.CONVERTED`."""
