"""Convert a `ModelConfig` to the config.json from which the authors' loaders build the same model.

The inverse of `authors_config`. Their GPT supports up to three different mixers, and all its softmax layers
have the same heads, rotary positions and biases; their Mamba has Mamba and attention. Settings that do not
affect a trained model's outputs and have no entry in their config are dropped: a Mamba's initialisation,
`dtype`, `remat`, and the implementation of a mixer.
"""

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

from based_jax import mixers
from based_jax.convert.authors_config import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from based_jax.convert.authors_layers import SLOTS
from based_jax.convert.authors_mamba import MLP_MULTIPLE as MAMBA_MLP_MULTIPLE
from based_jax.convert.authors_mamba import SSM_OPTIONS
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
    "dropout": "attn_pdrop",
}
"""Our options of softmax layers -> their entries."""
_ACTIVATIONS = {
    "gated": {ours: theirs for theirs, ours in GATED_ACTIVATIONS.items()},
    "plain": {ours: theirs for theirs, ours in reversed(PLAIN_ACTIVATIONS.items())},
}

# Other entries that their code reads, as in the authors' training configs.
_GPT: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPTLMHeadModel"],
    "use_flash_attn": True,
    "fused_mlp": False,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "reorder_and_upcast_attn": False,
    "scale_attn_by_inverse_layer_idx": False,
}


def config_for_authors(config: ModelConfig) -> dict[str, Any]:
    """Return the entries of config.json.

    Raises:
        ValueError: the authors' code cannot build a part of the model, or a layer with these options.
    """
    _expect(config.final_norm in (None, config.norm), "final_norm", config.final_norm, repr(config.norm))
    for name, only in (
        ("final_norm_eps", (None, config.norm_eps)),
        ("positions", ("learned",)),
        ("embed_init", ("default",)),
        ("freeze_embedding", (False,)),
        ("input_dim", (None,)),
        ("drop_path", (0.0,)),
    ):
        value = getattr(config, name)
        _expect(value in only, name, value, repr(only[-1]))
    return _mamba(config) if names_of(config) is MAMBA_MODEL else _gpt(config)


def _gpt(config: ModelConfig) -> dict[str, Any]:
    expected = "'gated', 'plain', or 'none' with mamba in every layer"
    _expect(config.mlp in _ACTIVATIONS, "mlp", config.mlp, expected)
    activation, known = config.mlp_activation, _ACTIVATIONS[config.mlp]
    _expect(activation in known, "mlp_activation", activation, f"one of {', '.join(known)} if {config.mlp}")
    fits = config.mlp == "plain" or config.mlp_hidden % MLP_MULTIPLE == 0
    _expect(fits, "mlp_hidden", config.mlp_hidden, f"a multiple of {MLP_MULTIPLE}")
    return {
        "n_embd": config.d_model,
        "n_layer": config.num_layers,
        "n_inner": config.mlp_hidden,
        "n_positions": config.max_length,
        "max_position_embeddings": config.max_positions,
        "vocab_size": config.vocab_size,
        "pad_vocab_size_multiple": config.pad_vocab_multiple,
        "activation_function": known[activation],
        "mlp_fc1_bias": config.mlp_bias,
        "mlp_fc2_bias": config.mlp_bias if config.mlp_out_bias is None else config.mlp_out_bias,
        "rms_norm": config.norm == "rms",
        "layer_norm_epsilon": config.norm_eps,
        "initializer_range": config.init_std,
        "embd_pdrop": config.embed_dropout,
        "resid_pdrop": config.residual_dropout,
        "residual_in_fp32": config.residual_in_fp32 and config.block != "postnorm",
        "tie_word_embeddings": config.tie_embeddings,
        **_GPT,
        **_BLOCKS[config.block],
        **({} if config.embed_dim is None else {"word_embed_proj_dim": config.embed_dim}),
        **_softmax_entries(config),
        **_mixer_entries(config),
    }


_BLOCKS: dict[str, dict[str, Any]] = {
    "prenorm": {},
    "postnorm": {"prenorm": False},
    "parallel": {"parallel_block": True},
    "parallel_tied": {"parallel_block": True, "parallel_block_tied_norm": True},
}


def _mamba(config: ModelConfig) -> dict[str, Any]:
    for name, only in (
        *(("norm_eps", 1e-5), ("max_positions", 0), ("embed_dim", None)),
        *(("embed_dropout", 0.0), ("residual_dropout", 0.0)),
    ):
        _expect(getattr(config, name) == only, name, getattr(config, name), repr(only))
    default = mixers.make("mamba", d_model=config.d_model)
    layers = [i for i in range(config.num_layers) if config.layer(i).mixer == "mamba"]
    ssm = {}
    for theirs, ours in SSM_OPTIONS.items():
        first = getattr(_module(config, layers[0]), ours)
        for index in layers:
            _expect_in(config, index, ours, getattr(_module(config, index), ours), first)
        if first != getattr(default, ours):
            ssm[theirs] = first
    return {
        "d_model": config.d_model,
        "n_layer": config.num_layers,
        "vocab_size": config.vocab_size,
        "ssm_cfg": ssm,
        "rms_norm": config.norm == "rms",
        "residual_in_fp32": config.residual_in_fp32,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": config.pad_vocab_multiple,
        "n_positions": config.max_length,
        **_mamba_mlp(config),
        **_mamba_attention(config),
        **({} if config.tie_embeddings else {"tie_embeddings": False}),
    }


def _mamba_mlp(config: ModelConfig) -> dict[str, Any]:
    if config.mlp == "none":
        return {}
    fits = config.mlp_hidden % MAMBA_MLP_MULTIPLE == 0
    _expect(fits, "mlp_hidden", config.mlp_hidden, f"a multiple of {MAMBA_MLP_MULTIPLE}")
    _expect(config.mlp_activation == "silu", "mlp_activation", config.mlp_activation, "'silu'")
    _expect(not (config.mlp_bias or config.mlp_out_bias), "mlp_bias", True, "no bias")
    return {"d_intermediate": config.mlp_hidden}


def _mamba_attention(config: ModelConfig) -> dict[str, Any]:
    layers = [i for i in range(config.num_layers) if config.layer(i).mixer == "attention"]
    if not layers:
        return {}
    first = _module(config, layers[0])
    for index in layers[1:]:
        _expect(_module(config, index) == first, f"layer {index}", config.layer(index), "as the others")
    _expect_in(config, layers[0], "dropout", first.dropout, 0.0)
    heads, kv_heads, width = first.layout
    entry = {
        "causal": True,
        "num_heads": heads,
        "num_heads_kv": None if kv_heads == heads else kv_heads,
        "head_dim": None if width == config.d_model / heads else width,
        "softmax_scale": first.scale,
        "qkv_proj_bias": first.qkv_bias,
        "out_proj_bias": first.out_bias,
        "rotary_emb_dim": first.rotary_dim,
        "rotary_emb_base": first.rotary_base,
        "rotary_emb_interleaved": first.rotary_interleaved,
    }
    return {"attn_layer_idx": layers, "attn_cfg": entry}


def _mixer_entries(config: ModelConfig) -> dict[str, Any]:
    """Return entries with each different mixer in its own slot, and the layers of all but the first."""
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
        return {}  # as in the configs of their attention models
    return entries | {f"{slot}_layers": layers[slot] for slot in SLOTS[1:] if slot in layers}


def _gated_conv(config: ModelConfig, index: int, module: Any) -> dict[str, Any]:
    entry = {
        "_target_": f"{_TARGET}convolution.BaseConv",
        "l_max": config.max_length,
        "use_bias": module.bias,
        "expand_proj": module.expand,
        "kernel_size": module.kernel_size,
    }
    # Their convolution has a bias only if it runs as a CUDA kernel.
    return entry | ({"use_cuda": True} if module.conv_bias else {})


def _linear_attention(config: ModelConfig, index: int, module: Any) -> dict[str, Any]:
    taylor = f"{_TARGET}linear_attention"
    for option, only in (("feature_map", "taylor"), ("decay", "none"), ("rotary_fraction", 0.0)):
        _expect_in(config, index, option, getattr(module, option), only)
    heads, head_dim = module.layout()
    width = round(module.feature_dim / module.feature_scale**4)  # their map divides by its fourth root
    scale = (module.feature_dim / max(width, 1)) ** 0.25
    if not math.isclose(scale, module.feature_scale):
        _expect_in(config, index, "feature_scale", module.feature_scale, scale)
    return {
        "_target_": f"{taylor}.LinearAttention",
        "l_max": config.max_length,
        "feature_map": {"_target_": f"{taylor}.TaylorExp", "input_dim": width},
        "feature_dim": module.feature_dim,
        "num_heads": heads,
        **({} if heads * head_dim == config.d_model else {"head_dim": head_dim}),
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
    "attention": lambda config, index, module: None,  # their default if an entry is null
}
"""Registered name of a mixer -> function that returns a layer's entry; `module` has the mixer's options."""


def _softmax_entries(config: ModelConfig) -> dict[str, Any]:
    """Return the entries shared by all softmax layers; without such layers, a number of heads, never read."""
    found: dict[str, Any] = {}
    for index in range(config.num_layers):
        if config.layer(index).mixer not in _SOFTMAX:
            continue
        module = _module(config, index)
        heads, kv_heads, width = module.layout
        _expect_in(config, index, "head_dim", width, config.d_model // heads)
        options: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads}
        options |= {option: getattr(module, option) for option in list(_SOFTMAX_OPTIONS)[2:]}
        found = found or options
        for option, value in options.items():
            _expect_in(config, index, option, value, found[option])
    if not found:
        return {"n_head": 1, "attn_pdrop": 0}
    if found["num_kv_heads"] == found["num_heads"]:
        del found["num_kv_heads"]
    return {_SOFTMAX_OPTIONS[option]: value for option, value in found.items()} | _scale_entries(config)


def _scale_entries(config: ModelConfig) -> dict[str, Any]:
    """Return the entries that set the scale of the softmax layers."""
    layers = [i for i in range(config.num_layers) if config.layer(i).mixer in _SOFTMAX]
    modules = [_module(config, index) for index in layers]
    usual = modules[0].layout[2] ** -0.5
    scales = [usual if module.scale is None else module.scale for module in modules]
    for weights, inverse in itertools.product((True, False), (False, True)):
        start = usual if weights else 1.0
        if scales == [start / (index + 1) if inverse else start for index in layers]:
            entries = {} if weights else {"scale_attn_weights": False}
            return entries | {"scale_attn_by_inverse_layer_idx": inverse}
    expected = f"{usual:.6g} or 1 in every softmax layer, or this divided by the layer's number"
    _expect(False, "scale", scales, expected)
    return {}


def _module(config: ModelConfig, index: int) -> Any:
    """Return a layer's mixer module, with its options and their defaults."""
    spec = config.layer(index)
    module = mixers.make(spec.mixer, d_model=config.d_model, **spec.options)
    for option, only in {"qk_norm": False, "rotary_frequencies": None}.items():
        _expect_in(config, index, option, getattr(module, option, only), only)
    return module


def _expect_in(config: ModelConfig, index: int, option: str, value: Any, only: Any) -> None:
    _expect(value == only, f"{option} of layer {index} ({config.layer(index).mixer})", value, repr(only))


def _expect(condition: bool, argument: str, value: Any, expected: str) -> None:
    expect(condition, argument, value, f"{expected}, as the authors' code builds nothing else")
