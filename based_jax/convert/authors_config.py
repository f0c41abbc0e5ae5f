"""The authors' config.json (spec of Based, 9.1) to a `ModelConfig`, with the defaults of their code.

Their Mamba models are those of Mamba's own code. The others are flash-attention's GPT with the mixer of each
layer chosen so: a layer in `alt_mixer_2_layers` takes `alt_mixer_2`, else one in `alt_mixer_layers` takes
`alt_mixer`, else `mixer`, or multi-head attention where the config names no mixer. Entries that their code
ignores are ignored here too: `kernel_sizes`, `ff_mult`, `special_initializer`, `l_max`, the decay's, and the
sliding mixer's `num_heads`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from based_jax.convert.layouts import Shapes
from based_jax.convert.tables import AUTHORS, MAMBA_MODEL, Names
from based_jax.fields import MAX_SIZE
from based_jax.models import MixerSpec, ModelConfig
from based_jax.models.config import MAX_LAYERS
from based_jax.ops import left_from_torch_window
from based_jax.validate import expect, expect_choice

Config = Mapping[str, Any]

SLOTS = ("mixer", "alt_mixer", "alt_mixer_2")
"""Entries with a mixer each; a later one wins in the layers that it lists under its name and "_layers"."""

GATED_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}
"""Their name of the MLP to the activation of our gate."""

SSM_OPTIONS = {
    **{name: name for name in ("d_state", "d_conv", "expand", "dt_rank", "dt_min", "dt_max")},
    "dt_init_floor": "dt_floor",
}
"""Entries of their `ssm_cfg` to our Mamba's options."""

GPT2_VOCAB_SIZE = 50257

MAMBA_VOCAB_SIZE = 50277
"""of their Mamba models where the config does not say"""


def model_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Describe the model of a checkpoint.

    Args:
        shapes: shapes of the checkpoint's tensors by key; they decide the MLP's width and biases, which the
            authors round and default in several ways. Without them ({}) the config's word is taken.

    Raises:
        ValueError: a model, mixer or option that is not here; an entry that is missing.
    """
    if kind(config) == "mamba":
        return _mamba_model(config, shapes)
    _expect_sizes(config, shapes, AUTHORS, "n_embd", "n_head")
    for slot in SLOTS:
        expect(isinstance(config.get(slot) or {}, dict), slot, config.get(slot), "a JSON object or null")
        listed, wanted = config.get(f"{slot}_layers"), f"a list of at most {MAX_LAYERS} layers or null"
        fits = isinstance(listed or [], list) and len(listed or []) <= MAX_LAYERS
        expect(fits, f"{slot}_layers", listed, wanted)
    for entry in ("scale_attn_by_inverse_layer_idx", "parallel_block"):
        expect(not config.get(entry), entry, config.get(entry), "false: this option is not here")
    for entry in ("scale_attn_weights", "prenorm", "tie_word_embeddings"):
        expect(config.get(entry, True), entry, config.get(entry), "true: other models are not here")
    activation = config.get("activation_function", "gelu_new")
    expect_choice("activation_function", activation, tuple(GATED_ACTIVATIONS))

    has_bias = {name: f"{AUTHORS.layer(0)}.{name}.bias" in shapes for name in ("norm1", "mlp.fc1")}
    specs = [_layer(config, index, shapes) for index in range(config["n_layer"])]
    letters = _letters(specs)
    return ModelConfig(
        vocab_size=_size(config, "vocab_size", GPT2_VOCAB_SIZE),
        d_model=config["n_embd"],
        schedule="".join(letters[spec] for spec in specs),
        mixers={letter: spec for spec, letter in letters.items()},
        mlp_hidden=_mlp_hidden(config, shapes),
        mlp_activation=GATED_ACTIVATIONS[activation],
        mlp_bias=config.get("mlp_fc1_bias", has_bias["mlp.fc1"]),
        norm="rms" if config.get("rms_norm", not has_bias["norm1"]) else "layer",
        norm_eps=_number(config, "layer_norm_epsilon", 1e-5),
        embed_dropout=_number(config, "embd_pdrop", 0.0),
        max_positions=_size(config, "max_position_embeddings", 0, least=0),
        pad_vocab_multiple=_size(config, "pad_vocab_size_multiple", 1),
        init_std=_number(config, "initializer_range", 0.02),
        max_length=_size(config, "n_positions", 2048),
    )


def _mamba_model(config: Config, shapes: Shapes) -> ModelConfig:
    _expect_sizes(config, shapes, MAMBA_MODEL, "d_model")
    for entry in ("attn_layer_idx", "d_intermediate"):
        expect(not config.get(entry), entry, config.get(entry), "none: other models are not here")
    for entry in ("tie_embeddings", "tie_word_embeddings"):
        expect(config.get(entry, True), entry, config.get(entry), "true: other models are not here")
    ssm = config.get("ssm_cfg") or {}
    expect(isinstance(ssm, dict), "ssm_cfg", ssm, "a JSON object or null")
    for entry, only in (("layer", "Mamba1"), ("bias", False), ("conv_bias", True)):
        found = ssm.get(entry, only)
        expect(found == only, f"ssm_cfg.{entry}", found, f"{only}: others are not here")
    options = {SSM_OPTIONS[name]: ssm[name] for name in ssm if name in SSM_OPTIONS and ssm[name] != "auto"}
    return ModelConfig(
        vocab_size=_size(config, "vocab_size", MAMBA_VOCAB_SIZE),
        d_model=config["d_model"],
        schedule="M" * config["n_layer"],
        mixers={"M": MixerSpec("mamba", {"num_layers": config["n_layer"], **options})},
        mlp="none",
        norm="rms" if config.get("rms_norm", True) else "layer",
        norm_eps=_number(config, "norm_epsilon", 1e-5),
        pad_vocab_multiple=_size(config, "pad_vocab_size_multiple", 8),
        max_length=_size(config, "n_positions", 2048),
    )


def kind(config: Config) -> str:
    """ "based", "attn" or "mamba", as the authors' loaders are called.

    Raises:
        ValueError: neither of them.
    """
    if "ssm_cfg" in config or ("d_model" in config and "n_embd" not in config):
        return "mamba"  # may have GPT's entries too, with no effect
    if "n_embd" in config:
        return "based" if any(config.get(slot) for slot in SLOTS) else "attn"
    raise ValueError(
        f"entries {sorted(config)}: expected those of a based or attn model (n_embd, n_layer, ...)"
    )


def _size(entries: Config, name: str, default: int, least: int = 1, most: int = MAX_SIZE) -> int:
    value = entries.get(name, default)
    fits = type(value) is int and least <= value <= most
    expect(fits, name, value, f"an integer from {least} to {most}")
    return value


def _number(entries: Config, name: str, default: float) -> float:
    value = entries.get(name, default)
    fits = type(value) in (int, float) and 0 <= value < math.inf
    expect(fits, name, value, "a finite number, at least 0")
    return value


def _expect_sizes(config: Config, shapes: Shapes, names: Names, *entries: str) -> None:
    """Check that these are there, and that there are as many layers as in the weights."""
    for entry in (*entries, "n_layer"):
        expect(entry in config, "config.json", sorted(config), f"an entry {entry!r}")
        _size(config, entry, 0, most=MAX_LAYERS if entry == "n_layer" else MAX_SIZE)
    found = names.layers(shapes)
    fits = not found or len(found) == config["n_layer"]
    expect(fits, "n_layer", config["n_layer"], f"{len(found)}, as the weights have layers")


def _layer(config: Config, index: int, shapes: Shapes) -> MixerSpec:
    listed = [slot for slot in SLOTS[1:] if index in (config.get(f"{slot}_layers") or ())]
    name = listed[-1] if listed else SLOTS[0]
    options = config.get(name) or {"_target_": "MHA"}
    target = _target(options)
    expect(target in _MIXERS, f"{name}._target_", options.get("_target_"), "one of " + ", ".join(_MIXERS))
    prefix = f"{AUTHORS.layer(index)}.{AUTHORS.mixer}."
    own = {key.removeprefix(prefix): shape for key, shape in shapes.items() if key.startswith(prefix)}
    return _MIXERS[target](config, options, own)


def _target(entry: Config, default: str = "") -> str:
    """The last part of the path of the class that an entry names."""
    return str(entry.get("_target_", default)).rpartition(".")[2]


def _gated_conv(config: Config, options: Config, shapes: Shapes) -> MixerSpec:
    sizes = {"expand": _size(options, "expand_proj", 4), "kernel_size": _size(options, "kernel_size", 3)}
    # Only models that were built with the CUDA convolution have one.
    conv_bias = "conv.conv.bias" in shapes if shapes else bool(options.get("use_cuda"))
    return MixerSpec("gated_conv", {**sizes, "bias": options.get("use_bias", True), "conv_bias": conv_bias})


def _linear_attention(config: Config, options: Config, shapes: Shapes) -> MixerSpec:
    feature_map = options.get("feature_map") or {}
    is_taylor = isinstance(feature_map, dict) and _target(feature_map, "TaylorExp") == "TaylorExp"
    expect(is_taylor, "feature_map", feature_map, "TaylorExp: other feature maps are not here yet")
    path = str(options.get("parallel_implementation", "quadratic"))
    expect(path != "tk", "parallel_implementation", path, "one with a normaliser: the tk models lack it")
    sizes = {name: _size(options, name, 16) for name in ("num_heads", "feature_dim")}
    eps = 1e-6 if "fla" in path else _number(options, "eps", 1e-12)
    return MixerSpec("linear_attention", {**sizes, "eps": eps})


def _sliding_window(config: Config, options: Config, shapes: Shapes) -> MixerSpec:
    left = left_from_torch_window(_size(options, "window_size", 128, least=0))
    return MixerSpec("sliding_window", {"left": left, **_heads(config, shapes)})


def _attention(config: Config, options: Config, shapes: Shapes) -> MixerSpec:
    return MixerSpec("attention", _heads(config, shapes))


_MIXERS: dict[str, Callable[[Config, Config, Shapes], MixerSpec]] = {
    "BaseConv": _gated_conv,
    "LinearAttention": _linear_attention,
    "SlidingAttention": _sliding_window,
    "MHA": _attention,
}
"""By the last part of `_target_`: whole config, the mixer's entry, its tensors' shapes."""


def _heads(config: Config, shapes: Shapes) -> dict[str, Any]:
    options = {
        "num_heads": config["n_head"],
        "rotary_fraction": float(_number(config, "rotary_emb_fraction", 0.0)),
        "qkv_bias": config.get("qkv_proj_bias", "Wqkv.bias" in shapes),
        "out_bias": config.get("out_proj_bias", "out_proj.bias" in shapes),
    }
    if config.get("n_head_kv") is not None:
        options["num_kv_heads"] = _size(config, "n_head_kv", 0)
    if config.get("rotary_emb_base") is not None:
        options["rotary_base"] = _number(config, "rotary_emb_base", 0)
    if config.get("rotary_emb_interleaved") is not None:
        options["rotary_interleaved"] = bool(config["rotary_emb_interleaved"])
    return options


def _mlp_hidden(config: Config, shapes: Shapes) -> int:
    key = f"{AUTHORS.layer(0)}.{AUTHORS.mlp}.fc2.weight"
    if key in shapes:
        return shapes[key][-1]
    default = int(8 * config["n_embd"] / 3)
    wanted = default if config.get("n_inner") is None else _size(config, "n_inner", default)
    return -(-wanted // 256) * 256


def _letters(specs: list[MixerSpec]) -> dict[MixerSpec, str]:
    """A letter for each different mixer: the papers' where they have one."""
    usual = {"gated_conv": "C", "linear_attention": "L", "sliding_window": "S", "attention": "A"}
    letters: dict[MixerSpec, str] = {}
    for spec in specs:
        free = [usual[spec.mixer], *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
        letters.setdefault(spec, next(letter for letter in free if letter not in letters.values()))
    return letters
