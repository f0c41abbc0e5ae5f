"""The table of the authors' torch modules that have a counterpart here.

An entry is found by the prefix of a fixture's `module`; it builds our module from the fixture's
hyperparameters (or from tensor shapes if those are not given), and names the layout rules.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from flax import linen as nn

from based_jax import mixers
from based_jax.convert import tables
from based_jax.convert.authors_config import kind
from based_jax.convert.layouts import Rules, Shapes
from based_jax.convert.references import models, zoology, zoology_models
from based_jax.convert.references.arguments import expect_arguments
from based_jax.convert.references.linear_attention import linear_attention
from based_jax.convert.references.mixer import Meta, TorchMixer, rotary_fraction, to_ours
from based_jax.convert.references.ops import OPS, TorchOp
from based_jax.models import MixerSpec
from based_jax.ops import left_from_torch_window
from based_jax.validate import expect


class Reference(NamedTuple):
    """How to convert one of the authors' modules to ours."""

    build: Callable[[Meta, Shapes], nn.Module]
    """meta and the shapes of the torch tensors -> our module"""
    rules: Callable[[Meta], Rules]
    """layout rules of its parameters"""
    width: Callable[[Meta, Shapes], int] = lambda meta, shapes: meta["d_model"]
    """number of input channels"""
    names: tables.Names | None = None
    """tensor names of a language model"""
    dropped: Callable[[Meta], tuple[str, ...]] = lambda meta: ()
    """unused torch keys"""


def find(meta: Meta) -> Reference:
    """Return the entry for a fixture, after checking its arguments; see `arguments`."""
    name = module_name(meta)
    for known, reference in REFERENCES.items():
        if re.match(rf"{re.escape(known)}\b", name):
            if reference.names is None:  # a model's config is checked elsewhere
                expect_arguments(known, meta)
            return reference
    raise ValueError(f"module = {name!r}: expected one of {', '.join(REFERENCES)}")


def module_name(meta: Meta) -> str:
    """Return the origin of a meta's numbers, in the form of the table's keys."""
    if "op" in meta:
        return f"op {meta['op']}"
    if "config" in meta:
        return f"checkpoint {meta.get('kind') or kind(meta['config'])}"
    if "model" in meta:
        return "training trace of a zoology language model"
    return str(meta.get("module", "a meta that names no module"))


def _mixer(mixer: TorchMixer) -> Reference:
    def build(meta: Meta, shapes: Shapes) -> nn.Module:
        name, options = dataclasses.astuple(mixer.spec(meta))
        return mixers.make(name, d_model=meta["d_model"], **options)

    return Reference(build, mixer.rules_for, dropped=mixer.dropped_for)


_sizes = {"expand": ("expand_proj", 2), "kernel_size": ("kernel_size", 3)}
_base_conv = to_ours("gated_conv", **_sizes, bias=("use_bias", True), conv_bias=("conv_bias", False))
_short_convolution = to_ours("short_conv", kernel_size="kernel_size", bias=("conv_bias", False))


def _sliding(meta: Meta) -> MixerSpec:
    left = left_from_torch_window(meta.get("window_size", 128))
    expect(meta.get("window_left", left) == left, "window_left", meta.get("window_left"), f"{left}")
    return MixerSpec("sliding_window", {"left": left, **_heads(meta)})


def _mha(meta: Meta) -> MixerSpec:
    left, right = meta.get("window_size") or (-1, -1)
    expect(right in (-1, 0), "window_size", meta.get("window_size"), "(left, -1) or (left, 0): causal")
    if left < 0:
        return MixerSpec("attention", _heads(meta))
    return MixerSpec("sliding_window", {"left": left, **_heads(meta)})


def _heads(meta: Meta) -> dict[str, Any]:
    """Return options of a packed-projection attention, for any spelling of its hyperparameters."""
    unread = {"causal": True, "cross_attn": False, "dwconv": False, "use_alibi": False}
    for name, value in {**unread, "rotary_emb_scale_base": None}.items():
        expect(meta.get(name, value) == value, name, meta.get(name), f"{value}")
    heads = meta["num_heads"]
    head_dim = meta["d_model"] // heads
    options: dict[str, Any] = {"dropout": meta["dropout"]} if meta.get("dropout") else {}
    scale = meta.get("softmax_scale")
    if scale is not None and scale != "head_dim**-0.5" and not math.isclose(scale, head_dim**-0.5):
        options["scale"] = scale
    return {
        **options,
        "num_heads": heads,
        "num_kv_heads": meta.get("num_heads_kv") or heads,
        "rotary_fraction": rotary_fraction(meta, head_dim),
        "rotary_base": meta.get("rotary_base", meta.get("rotary_emb_base", 10000.0)),
        "rotary_interleaved": meta.get("rotary_interleaved", meta.get("rotary_emb_interleaved", False)),
        "qkv_bias": meta.get("qkv_proj_bias", meta.get("bias", True)),
        "out_bias": meta.get("out_proj_bias", meta.get("bias", True)),
    }


_BASED = TorchMixer(linear_attention, tables.LINEAR_ATTENTION)
_MHA = TorchMixer(_mha, tables.SOFTMAX_ATTENTION)
_GATED_MLP = Reference(models.gated_mlp, models.mlp_rules, lambda meta, shapes: shapes["fc1.weight"][1])
_MLP = Reference(models.plain_mlp, models.mlp_rules, lambda meta, shapes: shapes["fc1.weight"][1])
_NORM = Reference(models.norm, lambda meta: tables.NORM, lambda meta, shapes: shapes["weight"][0])
_BLOCK = Reference(models.block, models.block_rules, lambda meta, shapes: shapes["norm1.weight"][0])

MIXERS: dict[str, TorchMixer] = {
    "based.models.mixers.convolution.BaseConv": TorchMixer(_base_conv, tables.GATED_CONV),
    "based ShortConvolution": TorchMixer(_short_convolution, tables.SHORT_CONV),
    "based.models.mixers.linear_attention.LinearAttention": _BASED,
    "based LinearAttention": _BASED,
    "based.models.mixers.slide_attention.SlidingAttention": TorchMixer(_sliding, tables.SOFTMAX_ATTENTION),
    "based.models.mixers.mha.MHA": _MHA,
    "flash_attn.modules.mha.MHA": _MHA,
    **zoology.MIXERS,
}

REFERENCES: dict[str, Reference] = {
    **{name: _mixer(mixer) for name, mixer in MIXERS.items()},
    "based.models.mlp.GatedMlp": _GATED_MLP,
    "flash_attn.modules.mlp.GatedMlp": _GATED_MLP,
    "based.models.mlp.Mlp": _MLP,
    "flash_attn.modules.mlp.Mlp": _MLP,
    "based.ops.triton.layer_norm.RMSNorm": _NORM,
    "flash_attn.ops.triton.layer_norm.RMSNorm": _NORM,
    "torch.nn.LayerNorm": _NORM,
    "based.models.block.Block": _BLOCK,
    "flash_attn.modules.block.Block": _BLOCK,
    "flash_attn.modules.block.ParallelBlock": _BLOCK,
    "checkpoint mamba": Reference(models.authors_model, models.authors_model_rules, names=tables.MAMBA_MODEL),
    "checkpoint": Reference(models.authors_model, models.authors_model_rules, names=tables.AUTHORS),
    "zoology.mixers.mlp.MLP": Reference(zoology_models.mlp, lambda meta: tables.MLP),
    "zoology.mixers.mlp.GLU": Reference(zoology_models.glu, lambda meta: zoology_models.GLU),
    "zoology.model.LanguageModel": Reference(
        zoology_models.language_model,
        zoology_models.language_model_rules,
        names=tables.ZOOLOGY,
        dropped=zoology_models.language_model_dropped,
    ),
    "training trace of a zoology language model": Reference(
        lambda meta, shapes: zoology_models.language_model(meta["model"], shapes),
        lambda meta: zoology_models.language_model_rules(meta["model"]),
        names=tables.ZOOLOGY,
        dropped=lambda meta: zoology_models.language_model_dropped(meta["model"]),
    ),
    **{f"op {op}": Reference(lambda meta, shapes: TorchOp(meta["op"]), lambda meta: ()) for op in OPS},
}
"""Prefix of `module_name(meta)` -> entry."""
