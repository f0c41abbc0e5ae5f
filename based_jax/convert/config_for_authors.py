"""A `ModelConfig` to the config.json from which the authors' loaders build the same model.

The inverse of `authors_config`. Their GPT has room for three different mixers, and gives all its softmax
layers the same heads, rotary positions and biases; their Mamba has Mamba layers only. What has no effect on
the numbers of a trained model and no entry there is dropped: how a Mamba is initialised, `dtype`, `remat`,
and which implementation computes a mixer.
"""

import json
from collections.abc import Callable
from typing import Any

from based_jax import mixers
from based_jax.convert.authors_config import GATED_ACTIVATIONS, SLOTS, SSM_OPTIONS
from based_jax.convert.tables import MAMBA_MODEL, names_of
from based_jax.mixers.contract import head_layout
from based_jax.models import ModelConfig
from based_jax.validate import expect

MLP_MULTIPLE = 256
"""Their gated MLP rounds its width up to a multiple of this."""

_TARGET = "based.models.mixers."
_USUAL_SLOT: dict[str, str] = {
    "gated_conv": SLOTS[0],
    "linear_attention": SLOTS[1],
    "sliding_window": SLOTS[2],
}
_SOFTMAX = ("attention", "sliding_window")
_SOFTMAX_OPTIONS = {
    "num_heads": "n_head",
    "num_kv_heads": "n_head_kv",
    **{name: name.replace("_", "_emb_") for name in ("rotary_fraction", "rotary_base", "rotary_interleaved")},
    **{name: name.replace("_", "_proj_") for name in ("qkv_bias", "out_bias")},
}
"""Our options of softmax layers to their entries."""
_ACTIVATIONS = {ours: theirs for theirs, ours in GATED_ACTIVATIONS.items()}

# What else their code reads, as in the configs that they trained with.
_GPT: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPTLMHeadModel"],
    "residual_in_fp32": True,
    "use_flash_attn": True,
    "fused_mlp": False,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "reorder_and_upcast_attn": False,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "attn_pdrop": 0,
    "resid_pdrop": 0,
}


def config_for_authors(config: ModelConfig) -> dict[str, Any]:
    """The entries of config.json.

    Raises:
        ValueError: a part of the model, or an option of a layer, that the authors' code cannot build.
    """
    _expect(config.tie_embeddings, "tie_embeddings", config.tie_embeddings, "True")
    _expect(config.final_norm in (None, config.norm), "final_norm", config.final_norm, repr(config.norm))
    return _mamba(config) if names_of(config) is MAMBA_MODEL else _gpt(config)


def _gpt(config: ModelConfig) -> dict[str, Any]:
    _expect(config.mlp == "gated", "mlp", config.mlp, "'gated', or 'none' with mamba in every layer")
    fits = config.mlp_hidden % MLP_MULTIPLE == 0
    _expect(fits, "mlp_hidden", config.mlp_hidden, f"a multiple of {MLP_MULTIPLE}")
    return {
        "n_embd": config.d_model,
        "n_layer": config.num_layers,
        "n_inner": config.mlp_hidden,
        "n_positions": config.max_length,
        "max_position_embeddings": config.max_positions,
        "vocab_size": config.vocab_size,
        "pad_vocab_size_multiple": config.pad_vocab_multiple,
        "activation_function": _ACTIVATIONS[config.mlp_activation],
        "mlp_fc1_bias": config.mlp_bias,
        "mlp_fc2_bias": config.mlp_bias,
        "rms_norm": config.norm == "rms",
        "layer_norm_epsilon": config.norm_eps,
        "initializer_range": config.init_std,
        "embd_pdrop": config.embed_dropout,
        **_GPT,
        **_softmax_entries(config),
        **_mixer_entries(config),
    }


def _mamba(config: ModelConfig) -> dict[str, Any]:
    _expect(config.norm_eps == 1e-5, "norm_eps", config.norm_eps, "1e-05")
    _expect(config.max_positions == 0, "max_positions", config.max_positions, "0")
    default = mixers.make("mamba", d_model=config.d_model)
    ssm = {}
    for theirs, ours in SSM_OPTIONS.items():
        first = getattr(_module(config, 0), ours)
        for index in range(config.num_layers):
            _expect_in(config, index, ours, getattr(_module(config, index), ours), first)
        if first != getattr(default, ours):
            ssm[theirs] = first
    return {
        "d_model": config.d_model,
        "n_layer": config.num_layers,
        "vocab_size": config.vocab_size,
        "ssm_cfg": ssm,
        "rms_norm": config.norm == "rms",
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": config.pad_vocab_multiple,
        "n_positions": config.max_length,
    }


def _mixer_entries(config: ModelConfig) -> dict[str, Any]:
    """The different mixers, each in a slot of its own, and which layers have those after the first."""
    slots: dict[str, str] = {}
    layers: dict[str, list[int]] = {}
    for index in range(config.num_layers):
        name = config.layer(index).mixer
        known = name in _ENTRIES
        _expect(known, f"mixer of layer {index}", name, "one of " + ", ".join((*_ENTRIES, "or mamba alone")))
        text = json.dumps(_ENTRIES[name](config, index, _module(config, index)))
        if text not in slots:
            free = [slot for slot in (_USUAL_SLOT.get(name), *SLOTS) if slot and slot not in slots.values()]
            _expect(bool(free), f"layer {index}", name, "at most three different mixers")
            slots[text] = free[0]
        layers.setdefault(slots[text], []).append(index)
    entries = {slot: json.loads(text) for text, slot in slots.items()}
    if entries == {"mixer": None}:
        return {}  # the form of their attention models
    return entries | {f"{slot}_layers": layers[slot] for slot in SLOTS[1:] if slot in layers}


def _gated_conv(config: ModelConfig, index: int, module: Any) -> dict[str, Any]:
    entry = {
        "_target_": f"{_TARGET}convolution.BaseConv",
        "l_max": config.max_length,
        "use_bias": module.bias,
        "expand_proj": module.expand,
        "kernel_size": module.kernel_size,
    }
    # Their convolution has a bias where it runs as a CUDA kernel, and only there.
    return entry | ({"use_cuda": True} if module.conv_bias else {})


def _linear_attention(config: ModelConfig, index: int, module: Any) -> dict[str, Any]:
    taylor = f"{_TARGET}linear_attention"
    for option, only in (("feature_map", "taylor"), ("decay", "none")):
        _expect_in(config, index, option, getattr(module, option), only)
    return {
        "_target_": f"{taylor}.LinearAttention",
        "l_max": config.max_length,
        "feature_map": {"_target_": f"{taylor}.TaylorExp", "input_dim": module.feature_dim},
        "feature_dim": module.feature_dim,
        "num_heads": head_layout(config.d_model, module.num_heads)[0],
        "eps": module.eps,
    }


def _sliding_window(config: ModelConfig, index: int, module: Any) -> dict[str, Any]:
    return {
        "_target_": f"{_TARGET}slide_attention.SlidingAttention",
        "window_size": 2 * module.left,  # which their code halves
        "num_heads": head_layout(config.d_model, module.num_heads)[0],
        "causal": True,
    }


_ENTRIES: dict[str, Callable[[ModelConfig, int, Any], dict[str, Any] | None]] = {
    "gated_conv": _gated_conv,
    "linear_attention": _linear_attention,
    "sliding_window": _sliding_window,
    "attention": lambda config, index, module: None,  # theirs where an entry is null
}
"""A layer's entry, by the registered name of its mixer; the mixer has its options with their defaults."""


def _softmax_entries(config: ModelConfig) -> dict[str, Any]:
    """What their config says once for all softmax layers; without any, the heads that nothing reads."""
    found: dict[str, Any] = {}
    for index in range(config.num_layers):
        if config.layer(index).mixer not in _SOFTMAX:
            continue
        module = _module(config, index)
        heads, kv_heads, _ = head_layout(config.d_model, module.num_heads, module.num_kv_heads)
        options: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads}
        options |= {option: getattr(module, option) for option in list(_SOFTMAX_OPTIONS)[2:]}
        found = found or options
        for option, value in options.items():
            _expect_in(config, index, option, value, found[option])
    if not found:
        return {"n_head": 1}
    if found["num_kv_heads"] == found["num_heads"]:
        del found["num_kv_heads"]
    return {_SOFTMAX_OPTIONS[option]: value for option, value in found.items()}


def _module(config: ModelConfig, index: int) -> Any:
    """The mixer of a layer: its options with their defaults."""
    spec = config.layer(index)
    return mixers.make(spec.mixer, d_model=config.d_model, **spec.options)


def _expect_in(config: ModelConfig, index: int, option: str, value: Any, only: Any) -> None:
    _expect(value == only, f"{option} of layer {index} ({config.layer(index).mixer})", value, repr(only))


def _expect(condition: bool, argument: str, value: Any, expected: str) -> None:
    expect(condition, argument, value, f"{expected}, as the authors' code builds nothing else")
