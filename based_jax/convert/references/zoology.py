"""Zoology's mixers, as the reference fixtures describe them: by class and keywords."""

from typing import Any

from based_jax.convert.layouts import renamed
from based_jax.convert.references import convolutions, delta, recurrences, selection
from based_jax.convert.references.mixer import Meta, TorchMixer, to_ours
from based_jax.convert.tables import LINEAR_ATTENTION, SOFTMAX_ATTENTION
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice

FEATURE_MAPS = {
    **{name: name for name in ("all_poly", "cosformer", "identity", "performer", "pos_elu")},
    "taylor_exp": "taylor",
    "ExpDim": "exp_dim",
    "ReLU": "relu",
    "SoftmaxDim": "softmax_dim",
    "Square": "square",
    "SquaredMap": "squared_map",
}
"""Ours by their `feature_name`: a short name, or the last part of a class's path."""


def _based(meta: Meta) -> MixerSpec:
    name = meta.get("feature_name", "taylor_exp").rpartition(".")[2]
    expect_choice("feature_name", name, tuple(FEATURE_MAPS))
    heads = meta.get("num_heads", 12)
    kv_heads = meta.get("num_key_value_heads", heads)
    expect(kv_heads == heads, "num_key_value_heads", kv_heads, f"{heads}, as num_heads")
    width = meta.get("feature_dim", 16)
    options: dict[str, Any] = {"num_heads": heads, "feature_dim": width, "eps": meta.get("eps", 1e-12)}
    if name != "taylor_exp":
        options["feature_map"] = FEATURE_MAPS[name]
    known = {"temp": 1.0, "fullspace": True, "input_dim": width}  # what we have no option for
    for option, value in meta.get("feature_kwargs", {}).items():
        if option in ("expanded_dim", "output_dim"):
            options["num_features"] = value
        else:
            expect(value == known.get(option), f"feature_kwargs[{option!r}]", value, repr(known.get(option)))
    return MixerSpec("linear_attention", options)


_WITHOUT_ROTARY = {"rotary_fraction": 0.0, "out_bias": True}
_attention = to_ours("attention", _WITHOUT_ROTARY, num_heads=("num_heads", 1), qkv_bias=("bias", True))
_sliding_window = to_ours(  # of block_size + 1 keys
    "sliding_window", {"num_heads": 1, "qkv_bias": True, **_WITHOUT_ROTARY}, left="block_size"
)

MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.attention.MHA": TorchMixer(_attention, SOFTMAX_ATTENTION),
    "zoology.mixers.based.Based": TorchMixer(_based, renamed(LINEAR_ATTENTION, "out_proj", "proj_o")),
    "zoology.mixers.slide_attn.SlidingAttn": TorchMixer(_sliding_window, SOFTMAX_ATTENTION),
    **convolutions.MIXERS,
    **delta.MIXERS,
    **recurrences.MIXERS,
    **selection.MIXERS,
}
"""By import path."""
