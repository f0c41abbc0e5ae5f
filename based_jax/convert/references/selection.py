"""Zoology's sparse and selective mixers: NystromFormer, BigBird, ScatterBrain, lookups, SMA.

What is not causal there is built as it is there.
"""

from based_jax.convert.layouts import Rules, dense, same, vector
from based_jax.convert.references.mixer import Meta, TorchMixer, to_ours
from based_jax.convert.tables import SOFTMAX_ATTENTION
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice

SCATTERBRAIN: Rules = (
    *SOFTMAX_ATTENTION,
    same("inner_attn.get_global.feature_map.projection_matrix", "random_features"),
)

LOOKUPS: Rules = (*SOFTMAX_ATTENTION, *dense("selecting", "selecting"))

SMA: Rules = (
    *SOFTMAX_ATTENTION,
    *dense("selection_proj", "selecting"),
    vector("temperature", "temperature"),
)


def _nystrom(meta: Meta) -> MixerSpec:
    for name in ("conv_kernel_size", "v_skip_connection", "landmark_pooling"):
        expect(meta.get(name) is None, name, meta.get(name), "None")
    names = {"num_landmarks": ("num_landmarks", 64), "iterations": ("inv_iterations", 6)}
    return to_ours("nystrom", {"causal": False}, **names)(meta)


def _scatterbrain(meta: Meta) -> MixerSpec:
    eps = meta.get("performer_eps", 1e-4)
    expect(eps == 1e-4, "performer_eps", eps, "1e-4")
    biases = {"qkv_bias": ("qkv_proj_bias", True), "out_bias": ("out_proj_bias", True)}
    sizes = {"num_heads": "num_heads", "left": "window_size", "feature_dim": ("feature_dim", 24)}
    return to_ours("scatterbrain", {"causal": False}, **biases, **sizes)(meta)


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
    "zoology.mixers.nystromformer.NystromAttention": TorchMixer(_nystrom, SOFTMAX_ATTENTION),
    "zoology.mixers.scatterbrain.attn.SBLocalAttention": TorchMixer(_scatterbrain, SCATTERBRAIN),
    "zoology.mixers.selective.SMA": TorchMixer(_sma, SMA),
    "zoology.mixers.selective.SelectiveLookups": TorchMixer(_selective_lookups, LOOKUPS),
    "zoology.mixers.selective.SigmoidLookups": TorchMixer(_sigmoid_lookups, LOOKUPS),
}
"""By import path."""
