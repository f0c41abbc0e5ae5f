"""Zoology's convolutions and state-space convolutions: BaseConv, LongConv, Hyena, H3."""

from typing import Any

from based_jax.convert.baselines import Meta, TorchMixer
from based_jax.convert.layouts import Layout, Rule, Rules, linear, same, taps, vector
from based_jax.models import MixerSpec
from based_jax.validate import expect


def _batched(key: str, path: str) -> Rule:
    """An array with an axis of size 1 in front of it there."""
    return Rule(
        (key,),
        (path,),
        Layout(
            lambda tensors, shapes: [tensor[0] for tensor in tensors],
            lambda leaves, count: [leaf[None] for leaf in leaves],
        ),
    )


def _dense(key: str, path: str, inputs: int = 1) -> Rules:
    return linear(f"{key}.weight", f"{path}/kernel", inputs), vector(f"{key}.bias", f"{path}/bias")


def _long_filter(prefix: str = "") -> Rules:
    return (
        linear(f"{prefix}filter", "filter/taps"),  # (channels, taps) there
        _batched(f"{prefix}pos_emb.z", "filter/embedding"),
        *_dense(f"{prefix}mlp.0", "filter/in_proj"),
        *_dense(f"{prefix}mlp.2", "filter/out"),
    )


BASE_CONV: Rules = (
    *_dense("projection", "projection"),
    taps("conv.conv.weight", "conv_kernel"),
    vector("conv.conv.bias", "conv_bias"),
    *_long_filter("conv."),
)

HYENA: Rules = (
    *_dense("in_proj", "in_proj"),  # rows [x_1 | x_2 | v]
    taps("short_filter.weight", "conv_kernel"),
    vector("short_filter.bias", "conv_bias"),
    vector("filter_fn.bias", "skip"),
    _batched("filter_fn.pos_emb.z", "filter/embedding"),
    _batched("filter_fn.implicit_filter.1.freq", "filter/frequency"),
    *_dense("filter_fn.implicit_filter.0", "filter/in_proj"),
    *_dense("filter_fn.implicit_filter.2", "filter/inner_0"),
    *_dense("filter_fn.implicit_filter.4", "filter/inner_1"),
    linear("filter_fn.implicit_filter.6.weight", "filter/out/kernel"),
    *_dense("out_proj", "out"),
)

H3: Rules = (
    *(rule for name in "qkv" for rule in _dense(f"{name}_proj", name)),
    same("ssm_k_kernel.kernel.B", "shift_b"),
    _batched("ssm_k_kernel.kernel.C", "shift_c"),
    vector("ssm_k_D", "shift_skip"),
    vector("kernel.kernel.log_dt", "log_dt"),
    same("kernel.kernel.inv_A_real", "log_rate"),
    same("kernel.kernel.A_imag", "frequency"),
    same("kernel.kernel.B", "b"),
    _batched("kernel.kernel.C", "c"),
    vector("D", "skip"),
    *_dense("output_linear", "out", inputs=2),
)


def _base_conv(meta: Meta) -> MixerSpec:
    options = {"kernel_size": meta.get("kernel_size", 3), "use_act": meta.get("use_act", False)}
    if options["kernel_size"] == -1:
        options |= {"l_max": meta["l_max"], "implicit": meta.get("implicit_long_conv", True)}
    return MixerSpec("base_conv", options)


def _long_conv(meta: Meta) -> MixerSpec:
    return MixerSpec("long_conv", {"l_max": meta["l_max"]})


def _implicit_long_conv(meta: Meta) -> MixerSpec:
    return MixerSpec("long_conv", {"l_max": meta["l_max"], "implicit": True})


def _hyena(meta: Meta) -> MixerSpec:
    for name, value in (("order", 2), ("num_heads", 1), ("num_inner_mlps", 2)):
        expect(meta.get(name, value) == value, name, meta.get(name), str(value))
    options: dict[str, Any] = {"l_max": meta["l_max"], "kernel_size": meta.get("short_filter_order", 3)}
    return MixerSpec(
        "hyena", options | {name: meta[name] for name in ("emb_dim", "filter_order") if name in meta}
    )


def _h3(meta: Meta) -> MixerSpec:
    return MixerSpec("h3", {"d_state": meta.get("d_state", 64), "head_dim": meta.get("head_dim", 1)})


MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.base_conv.BaseConv": TorchMixer(_base_conv, BASE_CONV),
    "zoology.mixers.convolution.LongConvolution": TorchMixer(_long_conv, _long_filter()),
    "zoology.mixers.convolution.ImplicitLongConvolution": TorchMixer(_implicit_long_conv, _long_filter()),
    "zoology.mixers.h3.h3.H3": TorchMixer(_h3, H3),
    "zoology.mixers.hyena.Hyena": TorchMixer(
        _hyena,
        HYENA,
        dropped=(  # constants, and second names of the one frequency
            "filter_fn.pos_emb.t",
            "filter_fn.modulation.deltas",
            "filter_fn.implicit_filter.3.freq",
            "filter_fn.implicit_filter.5.freq",
        ),
    ),
}
"""By import path."""
