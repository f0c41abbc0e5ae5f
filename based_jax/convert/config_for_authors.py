"""Convert a `ModelConfig` to the config.json from which the authors' loaders build the same model.

The inverse of `authors`: entries are written, read again and compared, so a model
that the authors' code cannot build is refused. Their GPT supports up to three different mixers, and all its
softmax layers have the same heads, rotary positions and biases; their Mamba has Mamba and attention. Settings
that do not affect a trained model's outputs and have no entry in their config are dropped (`_FREE`).
"""

import dataclasses
import itertools
import json
import math
from typing import Any

from based_jax import mixers
from based_jax.convert.authors import (
    GATED_ACTIVATIONS,
    MAMBA,
    MAMBA_ATTENTION,
    MAMBA_MODEL,
    PLAIN_ACTIVATIONS,
    SLOTS,
)
from based_jax.convert.configs import model_config
from based_jax.convert.options import write
from based_jax.convert.tables import NAMES, names_of
from based_jax.models import ModelConfig
from based_jax.validate import expect

_NOTHING_ELSE = "the authors' code builds nothing else"
_MODEL = "based.models.gpt.GPTLMHeadModel"
_TAYLOR = "based.models.mixers.linear_attention.TaylorExp"
_CLASSES = {
    "gated_conv": "based.models.mixers.convolution.BaseConv",
    "linear_attention": "based.models.mixers.linear_attention.LinearAttention",
    "sliding_window": "based.models.mixers.slide_attention.SlidingAttention",
}
_USUAL_SLOT = dict(zip(_CLASSES, SLOTS, strict=True))
_SOFTMAX = ("attention", "sliding_window")
_ACTIVATIONS = {
    **{("gated", ours): theirs for theirs, ours in GATED_ACTIVATIONS.items()},
    **{("plain", ours): theirs for theirs, ours in reversed(PLAIN_ACTIVATIONS.items())},
}
_USUAL_FIELD = {"final_norm": "norm", "final_norm_eps": "norm_eps", "mlp_out_bias": "mlp_bias"}
"""Fields -> the fields that have their value if they are None."""
_FREE = {
    *("dtype", "remat", "scan_layers", "schedule", "mixers", "init_std", "out_init_std"),
    *("implementation", "step_implementation", "num_layers"),
}
"""Fields of models and options of mixers that may differ; layers are compared one by one."""

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
_BLOCKS: dict[str, dict[str, Any]] = {
    "prenorm": {},
    "postnorm": {"prenorm": False},
    "parallel": {"parallel_block": True},
    "parallel_tied": {"parallel_block": True, "parallel_block_tied_norm": True},
}


def config_for_authors(config: ModelConfig) -> dict[str, Any]:
    """Return the entries of config.json."""
    entries = _mamba(config) if names_of(config) is NAMES["mamba"] else _gpt(config)
    ours, theirs = (_settings(model) for model in (config, model_config(entries, {})))
    for name, value in ours.items():
        built = theirs.get(name)
        is_close = isinstance(value, float) and isinstance(built, float) and math.isclose(value, built)
        expect(is_close or value == built, name, value, f"{built!r}, as {_NOTHING_ELSE}")
    return entries


def _settings(config: ModelConfig) -> dict[str, Any]:
    """Return options of all layers and fields of the model, with their defaults filled in."""
    found: dict[str, Any] = {}
    for index in range(config.num_layers):
        module, name = _module(config, index), config.layer(index).mixer
        options: dict[str, Any] = {}
        if name in (*_SOFTMAX, "linear_attention"):
            heads, *kv_heads, width = module.layout() if name == "linear_attention" else module.layout
            options = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": width}
        if name in _SOFTMAX:
            scale = width**-0.5 if module.scale is None else module.scale
            options |= {"scale": scale, "rotary_fraction": module.rotary_dim}
        others = set(mixers.info(name).options) - _FREE - options.keys()
        options |= {option: getattr(module, option) for option in sorted(others)}
        found |= {f"{option} of layer {index} ({name})": value for option, value in options.items()}
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name, usual in _USUAL_FIELD.items():
        fields[name] = fields[usual] if fields[name] is None else fields[name]
    if config.block == "postnorm":  # without a residual stream between blocks
        del fields["residual_in_fp32"]
    unread = {name for name in fields if name.startswith("mlp_") and config.mlp == "none"}
    return found | {name: value for name, value in fields.items() if name not in unread | _FREE}


def _gpt(config: ModelConfig) -> dict[str, Any]:
    return {
        **write(_MODEL, vars(config)),
        "n_layer": config.num_layers,
        "n_inner": config.mlp_hidden,
        "activation_function": _ACTIVATIONS.get(
            (config.mlp, config.mlp_activation), "gelu" if config.mlp == "plain" else "swiglu"
        ),
        "mlp_fc2_bias": config.mlp_bias if config.mlp_out_bias is None else config.mlp_out_bias,
        "rms_norm": config.norm == "rms",
        "residual_in_fp32": config.residual_in_fp32 and config.block != "postnorm",
        **_GPT,
        **_BLOCKS[config.block],
        **_softmax_entries(config),
        **_mixer_entries(config),
    }


def _mamba(config: ModelConfig) -> dict[str, Any]:
    layers = range(config.num_layers)
    default = mixers.make("mamba", d_model=config.d_model)
    first = next(_module(config, index) for index in layers if config.layer(index).mixer == "mamba")
    ssm = {name: value for name, value in vars(first).items() if value != getattr(default, name)}
    listed = [index for index in layers if config.layer(index).mixer == "attention"]
    entries = write(MAMBA_MODEL, vars(config)) | {
        "n_layer": config.num_layers,
        "ssm_cfg": write(MAMBA, ssm),
        "rms_norm": config.norm == "rms",
        "fused_add_norm": True,
        **({"attn_layer_idx": listed, "attn_cfg": _mamba_attention(config, listed[0])} if listed else {}),
    }
    usual = {
        "norm_epsilon": True,
        "tie_embeddings": config.tie_embeddings,
        "d_intermediate": config.mlp == "none",
    }
    return {name: value for name, value in entries.items() if not usual.get(name)}


def _mamba_attention(config: ModelConfig, index: int) -> dict[str, Any]:
    module = _module(config, index)
    entry = write(MAMBA_ATTENTION, vars(module) | _heads(module))
    return {**entry, "causal": True, "rotary_emb_dim": module.rotary_dim}


def _heads(module: Any) -> dict[str, Any]:
    """Return heads and width of softmax attention; None where they are their defaults."""
    heads, kv_heads, width = module.layout
    return {
        "num_heads": heads,
        "num_kv_heads": None if kv_heads == heads else kv_heads,
        "head_dim": None if width == module.d_model / heads else width,
    }


def _softmax_entries(config: ModelConfig) -> dict[str, Any]:
    """Return the entries shared by all softmax layers; without such layers, a number of heads, never read."""
    layers = [index for index in range(config.num_layers) if config.layer(index).mixer in _SOFTMAX]
    if not layers:
        return {"n_head": 1, "attn_pdrop": 0}
    modules = [_module(config, index) for index in layers]
    entries = write(_MODEL, vars(modules[0]) | _heads(modules[0]))
    entries["rotary_emb_fraction"] = modules[0].rotary_fraction
    usual = modules[0].layout[2] ** -0.5
    scales = [usual if module.scale is None else module.scale for module in modules]
    for start, inverse in itertools.product((usual, 1.0), (False, True)):
        if scales == [start / (index + 1) if inverse else start for index in layers]:
            entries |= {} if start == usual else {"scale_attn_weights": False}
            return entries | {"scale_attn_by_inverse_layer_idx": inverse}
    return entries


def _mixer_entries(config: ModelConfig) -> dict[str, Any]:
    """Return entries with each different mixer in its own slot, and the layers of all but the first."""
    slots: dict[str, str] = {}
    layers: dict[str, list[int]] = {}
    for index in range(config.num_layers):
        name = config.layer(index).mixer
        known = f"one of {', '.join(_CLASSES)}, attention, or mamba alone, as {_NOTHING_ELSE}"
        expect(name in (*_CLASSES, "attention"), f"mixer of layer {index}", name, known)
        text = json.dumps(_entry(config, name, _module(config, index)))
        if text not in slots:
            free = [slot for slot in (_USUAL_SLOT.get(name), *SLOTS) if slot and slot not in slots.values()]
            expect(bool(free), f"layer {index}", name, "at most three different mixers")
            slots[text] = free[0]
        layers.setdefault(slots[text], []).append(index)
    entries = {slot: json.loads(text) for text, slot in slots.items()}
    if entries == {"mixer": None}:
        return {}  # as in the configs of their attention models
    return entries | {f"{slot}_layers": layers[slot] for slot in SLOTS[1:] if slot in layers}


def _entry(config: ModelConfig, name: str, module: Any) -> dict[str, Any] | None:
    """Return a layer's entry; null is attention."""
    if name == "attention":
        return None
    options: dict[str, Any] = dict(vars(module))
    more: dict[str, Any] = {"l_max": config.max_length}
    if name == "gated_conv":
        options.pop("conv_bias")
        # Their convolution has a bias only if it runs as a CUDA kernel.
        more |= {"use_cuda": True} if module.conv_bias else {}
    elif name == "linear_attention":
        heads, head_dim = module.layout()
        options |= {"num_heads": heads, "head_dim": None if heads * head_dim == config.d_model else head_dim}
        width = max(
            round(module.feature_dim / module.feature_scale**4), 1
        )  # theirs divides by its fourth root
        more["feature_map"] = {"_target_": _TAYLOR, "input_dim": width}
    else:
        options = {"num_heads": module.layout[0]}
        more = {"window_size": 2 * module.left, "causal": True}  # their code halves the window
    return {"_target_": _CLASSES[name], **more, **write(_CLASSES[name], options)}


def _module(config: ModelConfig, index: int) -> Any:
    """Return a layer's mixer module, with its options and their defaults."""
    spec = config.layer(index)
    return mixers.make(spec.mixer, d_model=config.d_model, **spec.options)
