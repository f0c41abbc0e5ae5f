"""Zoology's convolutions and state-space convolutions: BaseConv, LongConv, Hyena, H3."""

from based_jax.convert.layouts import Rules, dense, linear, same, taps, vector
from based_jax.convert.references.mixer import Meta, TorchMixer, to_ours
from based_jax.models import MixerSpec
from based_jax.validate import expect


def _long_filter(prefix: str = "") -> Rules:
    return (
        linear(f"{prefix}filter", "filter/taps"),  # (channels, taps) there
        same(f"{prefix}pos_emb.z", "filter/embedding", ones=1),
        *dense(f"{prefix}mlp.0", "filter/in_proj"),
        *dense(f"{prefix}mlp.2", "filter/out"),
    )


LONG_CONV = _long_filter()

BASE_CONV: Rules = (
    *dense("projection", "projection"),
    taps("conv.conv.weight", "conv_kernel"),
    vector("conv.conv.bias", "conv_bias"),
    *_long_filter("conv."),
)

HYENA: Rules = (
    *dense("in_proj", "in_proj"),  # rows [x_1 | x_2 | v]
    taps("short_filter.weight", "conv_kernel"),
    vector("short_filter.bias", "conv_bias"),
    vector("filter_fn.bias", "skip"),
    same("filter_fn.pos_emb.z", "filter/embedding", ones=1),
    same("filter_fn.implicit_filter.1.freq", "filter/frequency", ones=1),
    *dense("filter_fn.implicit_filter.0", "filter/in_proj"),
    *dense("filter_fn.implicit_filter.2", "filter/inner_0"),
    *dense("filter_fn.implicit_filter.4", "filter/inner_1"),
    linear("filter_fn.implicit_filter.6.weight", "filter/out/kernel"),
    *dense("out_proj", "out"),
)

H3: Rules = (
    *(rule for name in "qkv" for rule in dense(f"{name}_proj", name)),
    same("ssm_k_kernel.kernel.B", "shift_b"),
    same("ssm_k_kernel.kernel.C", "shift_c", ones=1),
    vector("ssm_k_D", "shift_skip"),
    vector("kernel.kernel.log_dt", "log_dt"),
    same("kernel.kernel.inv_A_real", "log_rate"),
    same("kernel.kernel.A_imag", "frequency"),
    same("kernel.kernel.B", "b"),
    same("kernel.kernel.C", "c", ones=1),
    vector("D", "skip"),
    *dense("output_linear", "out", inputs=2),
)


def _base_conv(meta: Meta) -> MixerSpec:
    options = {"kernel_size": meta.get("kernel_size", 3), "use_act": meta.get("use_act", False)}
    if options["kernel_size"] == -1:
        options |= {"l_max": meta["l_max"], "implicit": meta.get("implicit_long_conv", True)}
    return MixerSpec("base_conv", options)


def _hyena(meta: Meta) -> MixerSpec:
    for name, value in (("order", 2), ("num_heads", 1), ("num_inner_mlps", 2)):
        expect(meta.get(name, value) == value, name, meta.get(name), str(value))
    widths = {name: (name,) for name in ("emb_dim", "filter_order")}
    return to_ours("hyena", l_max="l_max", kernel_size=("short_filter_order", 3), **widths)(meta)


_long_conv = to_ours("long_conv", l_max="l_max")
_implicit_long_conv = to_ours("long_conv", {"implicit": True}, l_max="l_max")
_h3 = to_ours("h3", d_state=("d_state", 64), head_dim=("head_dim", 1))

MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.base_conv.BaseConv": TorchMixer(_base_conv, BASE_CONV),
    "zoology.mixers.convolution.LongConvolution": TorchMixer(_long_conv, LONG_CONV),
    "zoology.mixers.convolution.ImplicitLongConvolution": TorchMixer(_implicit_long_conv, LONG_CONV),
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
