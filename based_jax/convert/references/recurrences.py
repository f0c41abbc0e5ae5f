"""Recurrences with a diagonal state (Mamba, RWKV-4) or a matrix state per head (GLA, Mamba-2, RWKV-5)."""

import math
from collections.abc import Callable
from typing import Any

from based_jax.convert.fla_layers import ACTIVATIONS
from based_jax.convert.fla_tables import GLA, MAMBA2
from based_jax.convert.layouts import Rules, linear, same, vector
from based_jax.convert.references.mixer import Meta, TorchMixer, blend
from based_jax.convert.tables import MAMBA
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice


def _depth(meta: Meta) -> dict[str, Any]:
    """Return the layer's index among `n_layer`, which affects only initial values and is clipped here."""
    count = meta.get("n_layer", 12)
    return {"layer": min(max(meta.get("layer_idx") or 0, 0), count - 1), "num_layers": count}


def _rwkv4(mixer: str) -> Callable[[Meta], MixerSpec]:
    return lambda meta: MixerSpec(mixer, _depth(meta))


def _mamba(meta: Meta) -> MixerSpec:
    options = _given(meta, *_MAMBA, "dt_init", "dt_scale", dt_init_floor="dt_floor")
    rank = meta.get("dt_rank", "auto")
    if not str(rank).startswith("auto"):  # fixtures append the resulting number
        options["dt_rank"] = int(rank)
    return MixerSpec("mamba", options)


_MAMBA = ("d_state", "d_conv", "expand", "bias", "conv_bias", "dt_min", "dt_max")


def _given(meta: Meta, *names: str, **renamed: str) -> dict[str, Any]:
    """Return our options for those of these keywords that are given, some under another name."""
    ours = {name: name for name in names} | renamed
    return {ours[theirs]: value for theirs, value in meta.items() if theirs in ours}


RWKV4_TIME_MIX: Rules = (
    vector("time_decay", "decay"),
    vector("time_first", "bonus"),
    *map(blend, "kvr"),
    *(linear(f"{name}.weight", f"{name}/kernel") for name in ("key", "value", "receptance")),
    linear("output.weight", "out/kernel"),
)

RWKV4_CHANNEL_MIX: Rules = (
    *map(blend, "kr"),
    linear("key.weight", "key/kernel"),
    linear("receptance.weight", "receptance/kernel"),
    linear("value.weight", "out/kernel"),
)


def _gla(meta: Meta) -> MixerSpec:
    """Convert Zoology's `GatedLinearAttention`."""
    names = ("num_heads", "num_kv_heads", "gate_low_rank_dim", "gate_logit_normalizer", "norm_eps")
    options = {
        "num_heads": 4,
        **_given(meta, *names, clamp_min="least_log_gate", elementwise_affine="norm_affine"),
    }
    for name, usual in (("expand_k", 0.5), ("expand_v", 1.0)):
        options[name] = int(meta["d_model"] * meta.get(name, usual)) / meta["d_model"]
    if meta.get("use_short_conv", False):
        options["kernel_size"] = meta.get("conv_size", 4)
    if meta.get("feature_map") is not None:
        expect_choice("feature_map", meta["feature_map"], tuple(ACTIVATIONS))
        options["qk_activation"] = ACTIVATIONS[meta["feature_map"]]
    gate = meta.get("gate_fn", "swish")
    expect_choice("gate_fn", gate, tuple(ACTIVATIONS))
    options["gate_activation"] = ACTIVATIONS[gate] if meta.get("use_output_gate", True) else None
    return MixerSpec("gla", options)


def _gla_rules(meta: Meta) -> Rules:
    is_fused = meta.get("gate_fn", "swish") == "swish" and meta.get("fuse_norm", True)
    norm = "g_norm_swish_gate" if is_fused and meta.get("use_output_gate", True) else "g_norm"
    return (*GLA, vector(f"{norm}.weight", "norm_scale"))


def _mamba2(meta: Meta) -> MixerSpec:
    names = ("norm_eps", "chunk_size", "norm_before_gate", "d_state", "d_conv", "expand", "bias", "conv_bias")
    renamed = {"rmsnorm": "norm", "d_ssm": "ssm_channels", "ngroups": "num_groups"}
    renamed |= {"D_has_hdim": "skip_per_channel", "dt_init_floor": "dt_floor"}
    options = {"head_dim": meta.get("headdim", 64), **_given(meta, *names, "dt_min", "dt_max", **renamed)}
    low, high = meta.get("dt_limit", (0.0, math.inf))
    options |= {"dt_least": low, "dt_most": None if math.isinf(high) else high}
    if "A_init_range" in meta:
        options |= dict(zip(("decay_min", "decay_max"), map(float, meta["A_init_range"]), strict=True))
    return MixerSpec("mamba2", options)


def _mamba2_rules(meta: Meta) -> Rules:
    parts = ("in_proj", "maps", "step")  # rows [z, x | B, C | dt]
    inner = int(meta.get("expand", 2) * meta["d_model"])
    if meta.get("d_ssm") not in (None, inner):
        parts = ("mlp", *parts)  # rows [z_0, x_0 | ...]
    return (
        *MAMBA2,
        linear("in_proj.weight", [f"{part}/kernel" for part in parts]),
        vector("in_proj.bias", [f"{part}/bias" for part in parts]),
    )


def _rwkv5(meta: Meta) -> MixerSpec:
    divisor = meta.get("head_size_divisor", 8)
    expect(divisor == 8, "head_size_divisor", divisor, "8")
    size = str(meta.get("head_size", 64)).split()[0]  # fixtures append its origin
    options = {"head_size": int(size), "norm_eps": meta.get("groupnorm_eps", 1e-5)}
    return MixerSpec("rwkv5", options | _depth(meta))


RWKV5: Rules = (
    *map(blend, "rkvg"),
    same("time_decay", "decay"),
    same("time_faaaa", "bonus"),
    *(linear(f"{name}.weight", f"{name}/kernel") for name in ("receptance", "key", "value", "gate")),
    linear("output.weight", "out/kernel", inputs=2),
    vector("ln_x.weight", "norm_scale"),
    vector("ln_x.bias", "norm_bias"),
)

MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.gla.GatedLinearAttention": TorchMixer(_gla, _gla_rules),
    "zoology.mixers.mamba2.Mamba2": TorchMixer(_mamba2, _mamba2_rules),
    "zoology.mixers.mamba.Mamba": TorchMixer(_mamba, MAMBA),
    "zoology.mixers.rwkv.RWKVTimeMixer": TorchMixer(_rwkv4("rwkv4"), RWKV4_TIME_MIX),
    "zoology.mixers.rwkv.RWKVStateMixer": TorchMixer(_rwkv4("rwkv_channel_mix"), RWKV4_CHANNEL_MIX),
    "zoology.mixers.rwkv5.RWKVTimeMixer": TorchMixer(_rwkv5, RWKV5),
}
"""By import path."""
