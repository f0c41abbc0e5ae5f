"""Recurrences with a diagonal state (Mamba, RWKV-4) and with a matrix per head (GLA, Mamba-2, RWKV-5)."""

from typing import Any

from based_jax.convert.layouts import Rules, linear, same, taps, vector
from based_jax.convert.references.mixer import Meta, TorchMixer, blend, to_ours
from based_jax.convert.tables import MAMBA
from based_jax.models import MixerSpec
from based_jax.validate import expect

_DEPTH = {"layer": ("layer_idx", 0), "num_layers": ("n_layer", 12)}


def _mamba(meta: Meta) -> MixerSpec:
    expect(not meta.get("bias", False), "bias", meta.get("bias"), "false")
    return to_ours("mamba", **{name: (name,) for name in ("d_state", "d_conv", "expand")})(meta)


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
    """Zoology's `GatedLinearAttention`."""
    expect(meta.get("use_output_gate", True), "use_output_gate", False, "True")
    expect(meta.get("gate_fn", "swish") == "swish", "gate_fn", meta.get("gate_fn"), "'swish'")
    same_names = ("num_heads", "expand_k", "expand_v", "gate_low_rank_dim", "gate_logit_normalizer")
    options: dict[str, Any] = {name: (name,) for name in same_names}
    if meta.get("use_short_conv", False):
        options["kernel_size"] = ("conv_size", 4)
    return to_ours("gla", norm_eps=("norm_eps", 1e-5), **options)(meta)


GLA: Rules = (
    *(linear(f"{name}_proj.weight", f"{name}/kernel") for name in "qkv"),
    *(taps(f"{name}_conv1d.weight", f"{name}_conv") for name in "qkv"),
    linear("gk_proj.0.weight", "decay_in/kernel"),
    linear("gk_proj.1.weight", "decay_out/kernel"),
    vector("gk_proj.1.bias", "decay_out/bias"),
    linear("g_proj.weight", "gate/kernel"),
    vector("g_norm_swish_gate.weight", "norm_scale"),
    linear("o_proj.weight", "out/kernel", inputs=2),
)


def _mamba2(meta: Meta) -> MixerSpec:
    expect(not meta.get("bias", False), "bias", meta.get("bias"), "false")
    expect(not meta.get("norm_before_gate", False), "norm_before_gate", True, "false")
    expect(meta.get("rmsnorm", True), "rmsnorm", False, "true")
    same_names = {name: (name,) for name in ("d_state", "d_conv", "expand", "norm_eps", "chunk_size")}
    return to_ours("mamba2", head_dim=("headdim", 64), num_groups=("ngroups",), **same_names)(meta)


MAMBA2: Rules = (
    # Rows [z, x | B, C | dt].
    linear("in_proj.weight", ("in_proj/kernel", "maps/kernel", "step/kernel")),
    taps("conv1d.weight", "conv_kernel"),
    vector("conv1d.bias", "conv_bias"),
    vector("dt_bias", "dt_bias"),
    vector("A_log", "A_log"),
    vector("D", "D"),
    vector("norm.weight", "norm_scale"),
    linear("out_proj.weight", "out/kernel"),
)


def _rwkv5(meta: Meta) -> MixerSpec:
    divisor = meta.get("head_size_divisor", 8)
    expect(divisor == 8, "head_size_divisor", divisor, "8")
    size = str(meta.get("head_size", 64)).split()[0]  # fixtures add where it comes from
    return to_ours("rwkv5", {"head_size": int(size)}, norm_eps=("groupnorm_eps", 1e-5), **_DEPTH)(meta)


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
    "zoology.mixers.gla.GatedLinearAttention": TorchMixer(_gla, GLA),
    "zoology.mixers.mamba2.Mamba2": TorchMixer(_mamba2, MAMBA2),
    "zoology.mixers.mamba.Mamba": TorchMixer(_mamba, MAMBA),
    "zoology.mixers.rwkv.RWKVTimeMixer": TorchMixer(to_ours("rwkv4", **_DEPTH), RWKV4_TIME_MIX),
    "zoology.mixers.rwkv.RWKVStateMixer": TorchMixer(
        to_ours("rwkv_channel_mix", **_DEPTH), RWKV4_CHANNEL_MIX
    ),
    "zoology.mixers.rwkv5.RWKVTimeMixer": TorchMixer(_rwkv5, RWKV5),
}
"""By import path."""
