"""Zoology's sparse and selective mixers: NystromFormer, BigBird, ScatterBrain, lookups, SMA.

Mixers that are not causal in Zoology are built the same way here.
"""

from typing import Any

from based_jax.convert.config_values import fraction, size
from based_jax.convert.layouts import Layout, Rule, Rules, dense, same, vector
from based_jax.convert.references.mixer import Meta, TorchMixer, to_ours
from based_jax.convert.tables import SOFTMAX_ATTENTION
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice

NYSTROM: Rules = (
    *SOFTMAX_ATTENTION,
    Rule(
        ("skip_connection.weight",),
        ("conv_kernel",),  # (1, 1, taps, 1) in torch
        Layout(
            lambda tensors, shapes: [tensors[0][0, 0, :, 0]],
            lambda leaves, count: [leaves[0][None, None, :, None]],
        ),
    ),
)

SCATTERBRAIN: Rules = (
    *SOFTMAX_ATTENTION,
    same("inner_attn.get_global.feature_map.projection_matrix", "random_features"),
)

LOOKUPS: Rules = (*SOFTMAX_ATTENTION, *dense("selecting", "selecting"))

SMA: Rules = (*SOFTMAX_ATTENTION, *dense("selection_proj", "selecting"), vector("temperature", "temperature"))


def _nystrom(meta: Meta) -> MixerSpec:
    for name in ("v_skip_connection", "landmark_pooling"):
        expect(meta.get(name) is None, name, meta.get(name), "None, not a module")
    options: dict[str, Any] = {"num_landmarks": meta.get("num_landmarks", 64), "causal": False}
    options["iterations"] = meta.get("inv_iterations", 6)
    if not meta.get("use_razavi_pinverse", True):
        options["pinverse"] = "svd"
    elif meta.get("pinverse_original_init", False):
        options["pinverse"] = "shared"
    size = meta.get("conv_kernel_size")
    if size is not None:
        heads = meta.get("num_heads", 16)
        expect(heads == 1, "num_heads", heads, "1 with conv_kernel_size: others mix the rows of a batch")
        options["conv_kernel_size"] = size
    return MixerSpec("nystrom", options)


def _scatterbrain(meta: Meta) -> MixerSpec:
    eps = meta.get("performer_eps", 1e-4)
    expect(eps == 1e-4, "performer_eps", eps, "1e-4")
    heads = meta["num_heads"]
    kv_heads = meta.get("num_heads_kv") or heads
    expect(kv_heads == heads, "num_heads_kv", kv_heads, f"{heads}, as num_heads: others fail there")
    xpos = meta.get("rotary_emb_scale_base")
    expect(xpos is None, "rotary_emb_scale_base", xpos, "None: xPos is not supported")
    window = meta.get("window_size", (-1, -1))
    expect(isinstance(window, int), "window_size", window, "a number of keys: pairs fail there")
    options: dict[str, Any] = {"causal": False, "num_heads": heads, "left": window}
    options["feature_dim"] = meta.get("feature_dim", 24) // 2 * 2  # twice half of them, rounded down
    width = max(meta["d_model"] // heads, 1)
    options["rotary_fraction"] = fraction(size(meta, "rotary_emb_dim", 0, least=0, most=width), width)
    options["rotary_base"] = float(meta.get("rotary_emb_base", 10000.0))
    options["rotary_interleaved"] = meta.get("rotary_emb_interleaved", False)
    for name in ("qkv", "out"):
        options[f"{name}_bias"] = meta.get(f"{name}_proj_bias", True)
    return MixerSpec("scatterbrain", options)


def _selection(meta: Meta) -> dict[str, object]:
    mode = meta.get("mode", "train")
    expect_choice("mode", mode, ("train", "eval"))
    return {"num_heads": meta.get("num_heads", 1), "qkv_bias": meta.get("bias", True), "hard": mode == "eval"}


def _selective_lookups(meta: Meta) -> MixerSpec:
    return MixerSpec("selective_lookups", _selection(meta) | {"causal": False})


def _sigmoid_lookups(meta: Meta) -> MixerSpec:
    more = {"lookups": meta.get("n_lookups"), "penalty": meta.get("selection_penalty", 0.001)}
    return MixerSpec("sigmoid_lookups", _selection(meta) | more)


def _sma(meta: Meta) -> MixerSpec:
    return MixerSpec("sma", _selection(meta) | {"alpha": meta.get("alpha", 0.3)})


MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.bigbird.BigBIRDAttention": TorchMixer(
        to_ours("bigbird", block_size=("block_size", 128), qkv_bias=("bias", True)), SOFTMAX_ATTENTION
    ),
    "zoology.mixers.nystromformer.NystromAttention": TorchMixer(_nystrom, NYSTROM),
    "zoology.mixers.scatterbrain.attn.SBLocalAttention": TorchMixer(_scatterbrain, SCATTERBRAIN),
    "zoology.mixers.selective.SMA": TorchMixer(_sma, SMA),
    "zoology.mixers.selective.SelectiveLookups": TorchMixer(_selective_lookups, LOOKUPS),
    "zoology.mixers.selective.SigmoidLookups": TorchMixer(_sigmoid_lookups, LOOKUPS),
}
"""By import path."""
