"""Zoology's mixers: keywords that are not one option of ours each, and layouts that depend on them."""

import math
from collections.abc import Mapping
from typing import Any

from based_jax.convert.fla import ACTIVATIONS, expanded, gla_options, mamba2_ranges
from based_jax.convert.options import Config as Meta
from based_jax.convert.options import Options, expect_known, fraction, read, size
from based_jax.validate import expect, expect_choice


def _base_conv(meta: Meta, options: Options) -> Options:
    taps = meta.get("kernel_size", 3)
    if not isinstance(taps, int):  # one per layer
        layer = meta.get("layer_idx")
        expect(layer is not None and layer < len(taps), "layer_idx", layer, f"0 to {len(taps) - 1}")
        taps = taps[layer]
    if taps != -1:  # then nothing reads these two
        options.pop("l_max", None)
        del options["implicit"]
    return {"kernel_size": taps}


NO_DECAY = 1e12
"""Share of l_max after which the decay reaches 0.01, for `modulate` = False: practically no decay."""


def _hyena(meta: Meta, options: Options) -> Options:
    more: Options = {"learned_positions": meta.get("lr_pos_emb", 1e-5) != 0}
    if not meta.get("modulate", True):
        never = {"fast_decay": NO_DECAY, "slow_decay": NO_DECAY}
        return more | never
    log_target = math.log(meta.get("target", 0.01))
    share = math.log(0.01) / log_target if log_target else NO_DECAY  # our target is always 0.01
    more |= {"fast_decay": abs(meta.get("fast_decay_pct", 0.3) * share)}
    return more | {"slow_decay": abs(meta.get("slow_decay_pct", 1.5) * share)}


STATE_KERNEL = "zoology.mixers.h3.ss_kernel.SSKernel"
STATE_KERNELS: dict[str, tuple[str, ...]] = {
    "diag": ("disc", "real_type", "bandlimit", "force_real"),
    "ema": ("dt_tie", "l_max", "efficient_bidirectional"),
}
"""`mode` -> the `kernel_args` that only its class has."""
SAMPLED = ("n_ssm", "dt_min", "dt_max")
"""`kernel_args` that all modes accept and "diag" reads."""


def _h3(meta: Meta, options: Options) -> Options:
    del options["kernel"]
    given = meta.get("kernel_args", {})
    if not isinstance(given, Mapping):  # a description
        return {}
    expect_known(STATE_KERNEL, given, "kernel_args")
    rates = given.get("lr")
    for rate in rates.values() if isinstance(rates, Mapping) else (rates,):
        expect(rate != 0, "kernel_args['lr']", rates, "no 0, which freezes a parameter there")
    mode = given.get("mode", "diag")
    expect_choice("kernel_args['mode']", mode, tuple(STATE_KERNELS))
    names = STATE_KERNELS[mode] + (SAMPLED if mode == "diag" else ())
    for other in (name for name in given if name not in names):
        fits = not any(other in others for others in STATE_KERNELS.values())
        expect(fits, f"kernel_args[{other!r}]", given[other], f"none with mode {mode!r}: it fails there")
    more = read(STATE_KERNEL, {name: given[name] for name in names if name in given})
    return more | {"kernel": {"diag": "diagonal"}.get(mode, mode)}


def _depth(meta: Meta, options: Options) -> Options:
    """Return the layer's index among `n_layer`, which affects only initial values and is clipped here."""
    return {"layer": min(max(meta.get("layer_idx") or 0, 0), options["num_layers"] - 1)}


def _mamba(meta: Meta, options: Options) -> Options:
    return {"dt_rank": None if options["dt_rank"] == "auto" else options["dt_rank"]}


def _mamba2(meta: Meta, options: Options) -> Options:
    return mamba2_ranges({"dt_limit": (0.0, math.inf), "A_init_range": (1, 16), **meta})


def _gla(meta: Meta, options: Options) -> Options:
    more = gla_options({"feature_map": None, **meta, **options, "hidden_size": meta["d_model"]})
    gate = meta.get("gate_fn", "swish")
    expect_choice("gate_fn", gate, tuple(ACTIVATIONS))
    return more | {"gate_activation": ACTIVATIONS[gate] if meta.get("use_output_gate", True) else None}


def _delta_net(meta: Meta, options: Options) -> Options:
    return expanded(meta["d_model"], options) | {"use_gate": meta.get("use_gate", False)}


def _gated_delta_net(meta: Meta, options: Options) -> Options:
    expand, heads = meta.get("expand_v", 2), meta.get("num_heads", 6)
    expect(expand == int(expand), "expand_v", expand, "a whole number: others fail there")
    width = meta["d_model"] // heads * heads / meta["d_model"]  # heads need not divide d_model
    more = {"num_heads": heads, "use_gate": meta.get("use_gate", True)}
    return more | {"expand_k": width, "expand_v": expand * width}


def _rwkv7(meta: Meta, options: Options) -> Options:
    """Convert RWKV-7 with Zoology's initialisation, without any delta rule; see the mixer."""
    ranks = [meta.get(f"{name}_low_rank_dim", rank) for name, rank in LOW_RANKS.items()]
    if "low_rank_dims" in meta:  # of decay, gate, a, and the unused v
        ranks = map(int, meta["low_rank_dims"].split(",")[:3])
    more: Options = dict(zip(("decay_rank", "gate_rank", "rate_rank"), ranks, strict=True))
    heads = meta.get("num_heads")
    return more if heads is None else more | {"head_dim": meta["d_model"] // heads}


LOW_RANKS = {"decay": 64, "gate": 128, "a": 64}


def _scatterbrain(meta: Meta, options: Options) -> Options:
    window = meta.get("window_size", (-1, -1))
    expect(isinstance(window, int), "window_size", window, "a number of keys: pairs fail there")
    width = max(meta["d_model"] // meta["num_heads"], 1)
    turned = size(meta, "rotary_emb_dim", 0, least=0, most=width)
    features = meta.get("feature_dim", 24) // 2 * 2  # twice half of them, rounded down
    return {"left": window, "feature_dim": features, "rotary_fraction": fraction(turned, width)}


def _selection(meta: Meta, options: Options) -> Options:
    mode = meta.get("mode", "train")
    expect_choice("mode", mode, ("train", "eval"))
    return {"hard": mode == "eval"}


CONVERTED = {
    f"zoology.mixers.{name}": convert
    for name, convert in {
        "base_conv.BaseConv": _base_conv,
        "delta_net.DeltaNet": _delta_net,
        "gated_delta_net.GatedDeltaNet": _gated_delta_net,
        "gla.GatedLinearAttention": _gla,
        "h3.h3.H3": _h3,
        "hyena.Hyena": _hyena,
        "mamba.Mamba": _mamba,
        "mamba2.Mamba2": _mamba2,
        "rwkv.RWKVStateMixer": _depth,
        "rwkv.RWKVTimeMixer": _depth,
        "rwkv5.RWKVTimeMixer": _depth,
        "rwkv7.RWKV7Attention": _rwkv7,
        "scatterbrain.attn.SBLocalAttention": _scatterbrain,
        "selective.SMA": _selection,
        "selective.SelectiveLookups": _selection,
        "selective.SigmoidLookups": _selection,
    }.items()
}
"""By import path; see `mixers.CONVERTED`."""

_FILTER = "filter_fn.implicit_filter"


def more_rows(mixer: str, meta: Meta) -> list[list[Any]]:
    """Return rows of `tables.rules_of` in addition to those of a mixer's table."""
    if mixer == "gla":
        is_fused = meta.get("gate_fn", "swish") == "swish" and meta.get("fuse_norm", True)
        norm = "g_norm_swish_gate" if is_fused and meta.get("use_output_gate", True) else "g_norm"
        return [[f"{norm}.weight", "norm_scale", "vector"]]
    if mixer == "mamba2":
        is_whole = meta.get("d_ssm") in (None, int(meta.get("expand", 2) * meta["d_model"]))
        # rows [z, x | B, C | dt], after those of an MLP [z_0, x_0]
        return [["in_proj", [*([] if is_whole else ["mlp"]), "in_proj", "maps", "step"]]]
    if mixer != "hyena":
        return []
    inner = meta.get("num_inner_mlps", 2)
    return [
        ["filter_fn.bias", "skip", "vector"],
        ["out_proj.bias", "out/bias", "vector"],
        [f"{_FILTER}.1.freq", "filter/frequency", "same", [0]],
        [f"{_FILTER}.0", "filter/in_proj"],
        *([f"{_FILTER}.{2 * layer + 2}", f"filter/inner_{layer}"] for layer in range(inner)),
        [f"{_FILTER}.{2 * inner + 2}", "filter/out"],
    ]


def dropped(mixer: str, meta: Meta) -> tuple[str, ...]:
    """Return the torch keys of a mixer that nothing reads: constants, and aliases of shared tensors."""
    if mixer == "rwkv7" and meta.get("layer_idx") != 0:
        # maps for the first layer's values, which are never passed to deeper ones
        return tuple(f"v_lora.lora.{part}" for part in ("0.weight", "2.weight", "2.bias"))
    if mixer != "hyena":
        return ()
    inner = meta.get("num_inner_mlps", 2)
    constants = ("filter_fn.pos_emb.t", "filter_fn.modulation.deltas")
    return (*constants, *(f"{_FILTER}.{2 * layer + 3}.freq" for layer in range(inner)))
