"""Zoology's convolutions and state-space convolutions: BaseConv, LongConv, Hyena, H3."""

import math
from collections.abc import Mapping
from typing import Any

from based_jax.convert.layouts import Layout, Rule, Rules, dense, linear, same, taps, vector
from based_jax.convert.options import expect_known
from based_jax.convert.references.mixer import Meta, TorchMixer, beside_unused, to_ours
from based_jax.convert.tables import SHORT_CONV
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice


def _long_filter(prefix: str = "") -> Rules:
    return (
        linear(f"{prefix}filter", "filter/taps"),  # (channels, taps) in torch
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


def _hyena_rules(meta: Meta) -> Rules:
    inner = meta.get("num_inner_mlps", 2)
    filters = "filter_fn.implicit_filter"
    rules: Rules = (
        *dense("in_proj", "in_proj"),  # rows [x_1 | x_2 | v]
        taps("short_filter.weight", "conv_kernel"),
        vector("short_filter.bias", "conv_bias"),
        same("filter_fn.pos_emb.z", "filter/embedding", ones=1),
        same("filter_fn.modulation.deltas", "filter/decay", ones=2),
        linear("out_proj.weight", "out/kernel"),
    )
    if meta.get("bias", True):
        rules += (vector("filter_fn.bias", "skip"), vector("out_proj.bias", "out/bias"))
    else:
        rules += (beside_unused("out_proj.bias", "filter_fn.bias", "out/bias"),)
    if meta.get("linear_mixer", False):
        return (*rules, linear(f"{filters}.0.weight", "filter/out/kernel"))
    return (
        *rules,
        same(f"{filters}.1.freq", "filter/frequency", ones=1),
        *dense(f"{filters}.0", "filter/in_proj"),
        *(rule for i in range(inner) for rule in dense(f"{filters}.{2 * i + 2}", f"filter/inner_{i}")),
        linear(f"{filters}.{2 * inner + 2}.weight", "filter/out/kernel"),
    )


def _hyena_dropped(meta: Meta) -> tuple[str, ...]:
    """Return the keys of constants, and aliases of the shared frequency."""
    inner = meta.get("num_inner_mlps", 2)
    names = ["filter_fn.pos_emb.t"]
    if not (meta.get("modulate", True) and meta.get("modulation_lr", 0.0)):
        names.append("filter_fn.modulation.deltas")
    return (*names, *(f"filter_fn.implicit_filter.{2 * i + 3}.freq" for i in range(inner)))


def _column(key: str, path: str) -> Rule:
    """Map an array to itself; the torch tensor has a trailing axis of size 1."""
    layout = Layout(
        lambda tensors, shapes: [tensors[0][..., 0]], lambda leaves, count: [leaves[0][..., None]]
    )
    return Rule((key,), (path,), layout)


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
    _column("kernel.kernel.delta", "ema_step"),
    _column("kernel.kernel.alpha", "ema_decay"),
    _column("kernel.kernel.beta", "ema_in"),
    same("kernel.kernel.gamma", "ema_out"),
    vector("D", "skip"),
    *dense("output_linear", "out", inputs=2),
)


def _base_conv(meta: Meta) -> MixerSpec:
    size = meta.get("kernel_size", 3)
    if not isinstance(size, int):  # one per layer
        layer = meta.get("layer_idx")
        expect(layer is not None and layer < len(size), "layer_idx", layer, f"0 to {len(size) - 1}")
        size = size[layer]
    options = {"kernel_size": size, "use_act": meta.get("use_act", False)}
    if size == -1:
        options |= {"l_max": meta["l_max"], "implicit": meta.get("implicit_long_conv", True)}
    return MixerSpec("base_conv", options)


NO_DECAY = 1e12
"""Share of l_max after which the decay reaches 0.01, for `modulate` = False: practically no decay."""


def _hyena(meta: Meta) -> MixerSpec:
    broken = {"num_heads": 1, "bidirectional": False}
    for name, value in broken.items():
        expect(meta.get(name, value) == value, name, meta.get(name), f"{value}: others fail there")
    blocks = meta.get("num_blocks", 1)
    expect(blocks == 1, "num_blocks", blocks, "1: filters wrap around within blocks, and leak")
    options: dict[str, Any] = {
        "l_max": meta["l_max"],
        "kernel_size": meta.get("short_filter_order", 3),
        "filter_order": meta.get("filter_order", 64),
        "emb_dim": meta.get("emb_dim", 3),
        "num_inner_mlps": meta.get("num_inner_mlps", 2),
        "sine_frequency": float(meta.get("w", 1)),
    }
    if meta.get("modulate", True):
        log_target = math.log(meta.get("target", 0.01))
        share = math.log(0.01) / log_target if log_target else NO_DECAY  # our target is always 0.01
        options |= {"fast_decay": abs(meta.get("fast_decay_pct", 0.3) * share)}
        options |= {"slow_decay": abs(meta.get("slow_decay_pct", 1.5) * share)}
        options |= {"decay_floor": float(meta.get("shift", 0.0))}
        options |= {"learned_decay": bool(meta.get("modulation_lr", 0.0))}
    else:
        options |= {"fast_decay": NO_DECAY, "slow_decay": NO_DECAY}
    options |= {"linear_filter": meta.get("linear_mixer", False)}
    options |= {"normalize_filter": meta.get("normalized", False), "skip_term": meta.get("bias", True)}
    options |= {"learned_positions": meta.get("lr_pos_emb", 1e-5) != 0}
    return MixerSpec("hyena", options)


def _h3(meta: Meta) -> MixerSpec:
    fast = meta.get("use_fast_fftconv", False)
    expect(not fast, "use_fast_fftconv", fast, "False: the other fails there")
    options: dict[str, Any] = {"d_state": meta.get("d_state", 64), "head_dim": meta.get("head_dim", 1)}
    options["l_max"] = meta.get("l_max")
    given = meta.get("kernel_args", {})
    if not isinstance(given, Mapping):  # a description
        return MixerSpec("h3", options)
    expect_known(STATE_KERNEL, given, "kernel_args")
    rates = given.get("lr")
    for rate in rates.values() if isinstance(rates, Mapping) else (rates,):
        expect(rate != 0, "kernel_args['lr']", rates, "no 0, which freezes a parameter there")
    mode = given.get("mode", "diag")
    expect_choice("kernel_args['mode']", mode, tuple(STATE_KERNELS))
    options["kernel"] = {"diag": "diagonal"}.get(mode, mode)
    read = STATE_KERNELS[mode] | (SAMPLED if mode == "diag" else {})
    for other in (name for name in given if name not in read):
        fits = not any(other in names for names in STATE_KERNELS.values())
        expect(fits, f"kernel_args[{other!r}]", given[other], f"none with mode {mode!r}: it fails there")
    options |= {ours: given[name] for name, ours in read.items() if name in given and ours}
    form = options.get("discretization", "bilinear")
    expect_choice("kernel_args['disc']", form, ("bilinear", "zoh"))  # dss depends on the input's length
    return MixerSpec("h3", options)


STATE_KERNEL = "zoology.mixers.h3.ss_kernel.SSKernel"

STATE_KERNELS: dict[str, dict[str, str]] = {
    "diag": {
        "disc": "discretization",
        "real_type": "rate_form",
        "bandlimit": "bandlimit",
        "force_real": "real",
    },
    "ema": {"dt_tie": "tied_steps", "l_max": "kernel_l_max", "efficient_bidirectional": ""},
    "shift": {},
}
"""`mode` -> the `kernel_args` that only its class has -> our options."""

SAMPLED = {"n_ssm": "num_ssms", "dt_min": "dt_min", "dt_max": "dt_max"}
"""`kernel_args` that all modes accept and "diag" reads -> our options."""


_filter = {"emb_dim": ("d_emb", 3), "filter_order": ("d_hidden", 16)}
_long_conv = to_ours("long_conv", l_max="l_max")
_implicit_long_conv = to_ours("long_conv", {"implicit": True}, l_max="l_max", **_filter)
_short_conv = to_ours("short_conv", {"bias": True}, kernel_size="kernel_size")

MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.base_conv.BaseConv": TorchMixer(_base_conv, BASE_CONV),
    "zoology.mixers.convolution.LongConvolution": TorchMixer(_long_conv, LONG_CONV),
    "zoology.mixers.convolution.ImplicitLongConvolution": TorchMixer(_implicit_long_conv, LONG_CONV),
    "zoology.mixers.convolution.ShortConvolution": TorchMixer(_short_conv, SHORT_CONV),
    "zoology.mixers.h3.h3.H3": TorchMixer(_h3, H3),
    "zoology.mixers.hyena.Hyena": TorchMixer(_hyena, _hyena_rules, _hyena_dropped),
}
"""By import path."""
