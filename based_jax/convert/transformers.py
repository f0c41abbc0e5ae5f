"""Convert Llama, Mistral, Qwen2, Qwen3 and hybrids of `transformers`: config.json, and weights that differ.

Pre-norm blocks of softmax attention and a SwiGLU MLP, with RMS norms and rotary positions. Llama 2 and 3 are
`llama`; Qwen2 and Qwen2.5 are `qwen2`; `qwen3` is the dense Qwen3. Hybrids, dense models only, have other
mixers in the layers without attention: LFM2 gated short convolutions, Qwen3.5, Qwen3-Next and OLMo-Hybrid
Gated DeltaNets; those with Mamba are in `transformers_mamba`. The meaning of each entry is in `options.json`
and in docs/options.md.

Packed matrices of Qwen3.5 and Qwen3-Next are split by their rows, and convolutions by their channels:

    q_proj                 of each head queries, gates
    in_proj_qkv, conv1d    queries, keys, values
    in_proj_qkvz           of each key head its query, key, values, gates (Qwen3-Next)
    in_proj_ba             of each key head betas, steps of its values (Qwen3-Next)

Their norms multiply by 1 + weight, which is computed in float32 as in their code, except those of Gated
DeltaNets. The vision tower (`visual`) and the layers that draft tokens (`mtp`) are left out.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from based_jax.convert import transformers_mamba as mamba
from based_jax.convert.layouts import Shapes, Tensors
from based_jax.convert.options import (
    Config,
    Layers,
    Options,
    delta_heads,
    expect_sizes,
    flag,
    heads_of,
    layers_of,
    mixer_spec,
    model_fields,
    number,
    own_entries,
    read,
    schedule_of,
    section,
    size,
    tables,
    with_defaults,
)
from based_jax.convert.rotary_scaling import rotary_options
from based_jax.models import ModelConfig
from based_jax.validate import expect

_LOG = logging.getLogger(__name__)
_OTHERS = re.compile(r"^(model\.)?(visual|mtp)\.")
_OUTPUT_NORMS = {
    "attention_layernorm.weight": "input_layernorm.weight",
    "feedforward_layernorm.weight": "post_attention_layernorm.weight",
}
_ZERO_CENTRED = re.compile(r"(?<!\.o_)norm\.weight$")


def transformers_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`."""
    config = text_entries(config)
    family = FAMILIES[config["model_type"]]
    required = [name for name, option in tables()[family.path].items() if not option.default]
    expect_sizes(config, *required, layers="num_hidden_layers")
    options = read(family.path, config)
    specs, more = family.layers(config, options, _attention(config, options, family))
    fixed: dict[str, Any] = {"mlp": "gated", "norm": "rms", "pad_vocab_multiple": 1}
    return ModelConfig(**{**model_fields(options), **schedule_of(specs), **fixed, **more})


def text_entries(config: Config) -> dict[str, Any]:
    """Return the entries of a text model with their defaults; Qwen3.5's are in `text_config`."""
    kind, family = config["model_type"], FAMILIES[config["model_type"]]
    given = family.entries(own_entries(family.path, config, family.aliases))
    if kind == "qwen3_5":
        kind, text = "qwen3_5_text", section(given, "text_config")
        family = FAMILIES[kind]
        tied = given.get("tie_word_embeddings")
        text = text if tied is None else {**text, "tie_word_embeddings": tied}
        given = own_entries(family.path, text, {}, "text_config")
    return with_defaults(family.path, given) | {"model_type": kind}


def is_text(name: str) -> bool:
    """Return whether a tensor is of the text model, not of the vision tower or of layers that draft."""
    return _OTHERS.match(name) is None


def _attention(config: Config, options: Config, family: "Family") -> dict[str, Any]:
    """Return the options of softmax attention that are not one entry each; null heads have defaults."""
    if "num_attention_heads" not in config:
        return {}
    heads = heads_of(config, name="num_attention_heads")
    head_dim = size(config, "head_dim", config["hidden_size"] // heads)
    has_bias = flag(config, "attention_bias", False)
    found: dict[str, Any] = {
        "num_kv_heads": size(config, "num_key_value_heads", heads),
        "head_dim": head_dim,
        "qkv_bias": has_bias,
        "out_bias": has_bias,
        **family.attention,
    }
    if "qk_norm" in found:
        found["qk_norm_eps"] = options["norm_eps"]
    if config.get("position_embedding_type", "rope") != "rope" or "rotary_fraction" in found:
        return {"rotary_fraction": 0.0, **found}
    return found | rotary_options(config, head_dim)


def _softmax(config: Config, options: Options, attention: Options) -> Layers:
    count, window = config["num_hidden_layers"], size(config, "sliding_window", None)
    full, sliding = "full_attention", "sliding_attention"
    mixers = {full: mixer_spec("attention", options, **attention)}
    # Mistral's window is in every layer.
    if window is not None and flag(config, "use_sliding_window", "use_sliding_window" not in config):
        left = window - 1  # theirs includes the query
        mixers[sliding] = mixer_spec("sliding_window", options, left=left, **attention)
    first = size(config, "max_window_layers", count if "max_window_layers" in config else 0, least=0)
    usual = [sliding if sliding in mixers and index >= first else full for index in range(count)]
    return layers_of(config, mixers, usual), {}


def _lfm2(config: Config, options: Options, attention: Options) -> Layers:
    bias, full = flag(config, "conv_bias", False), config["full_attn_idxs"]
    gates: dict[str, Any] = {"expand": 2, "gate_input": True, "bias": bias, "conv_bias": bias}
    mixers = {
        "full_attention": mixer_spec("attention", options, **attention),
        "conv": mixer_spec("gated_conv", options, **gates),
    }
    fits = full is None or isinstance(full, list)
    expect(fits, "full_attn_idxs", full, "a list of layers, or null for all of them")
    layers = range(config["num_hidden_layers"])
    usual = ["full_attention" if full is None or index in full else "conv" for index in layers]
    return layers_of(config, mixers, usual), {"mlp_hidden": _lfm2_hidden(config)}


def _lfm2_hidden(config: Config) -> int:
    """Return the MLP's width as computed by their constructor."""
    hidden = config["intermediate_size"]
    if not flag(config, "block_auto_adjust_ff_dim", True):
        return hidden
    hidden = int(2 * hidden / 3)
    if config["block_ffn_dim_multiplier"] is None:
        return hidden
    multiple = size(config, "block_multiple_of", 256)
    return -(-int(hidden * number(config, "block_ffn_dim_multiplier", 1.0)) // multiple) * multiple


def _olmo(config: Config, options: Options, attention: Options) -> Layers:
    attention |= {"num_heads": config["num_attention_heads"]}
    if section(config, "rope_parameters").get("rope_theta", config["rope_theta"]) is None:
        attention |= {"rotary_fraction": 0.0}
    full = mixer_spec("attention", options, **attention)
    shapes = delta_heads(config["hidden_size"], *_olmo_sizes(config))
    linear = mixer_spec("gated_delta_net", options, **shapes, norm_eps=1e-5)
    mixers = {"full_attention": full, "linear_attention": linear}
    count = config["num_hidden_layers"]
    every = range(min(count, 4), count + 1, 4)
    usual = ["full_attention" if index in every else "linear_attention" for index in range(1, count + 1)]
    specs = layers_of(config, mixers, usual)
    letters = schedule_of(specs)["mixers"].items()
    return specs, {"output_norms": "".join(letter for letter, spec in letters if spec == full)}


def _olmo_sizes(config: Config) -> list[int]:
    """Return the heads and channels of keys, then of values, in OLMo-Hybrid's layers without attention."""
    heads = size(config, "linear_num_key_heads", config["num_attention_heads"])
    width = size(config, "linear_key_head_dim", int(0.75 * config["hidden_size"] / heads))
    value_heads = size(config, "linear_num_value_heads", config["num_attention_heads"])
    return [heads, width, value_heads, size(config, "linear_value_head_dim", 2 * width)]


def olmo_tensors(config: Config, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the norms of outputs, given all names of their modules, and split convolutions as projections.

    `transformers` 5.18 writes the convolutions' channels of queries, keys and values in three equal parts.
    """
    found = {name: tensors[key] for key, name in _olmo_names(tensors).items()}
    heads, width, _, _ = _olmo_sizes(config)
    taps = (1, size(config, "linear_conv_kernel_dim", 4))
    for names in _olmo_convolutions(found):
        if all(name in found and found[name].shape[1:] == taps for name in names):
            found |= _split_anew([found[name] for name in names], names, [heads * width] * 2)
    return found


def olmo_stored(config: Config, tensors: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Invert `olmo_tensors` for a checkpoint of these shapes."""
    found = dict(tensors)
    for names in _olmo_convolutions(tensors):
        sizes = [shapes[name][0] for name in names if name in shapes]
        found |= _split_anew([tensors[name] for name in names], names, sizes[:-1])
    original = {name: key for key, name in _olmo_names(shapes).items()}
    return {original.get(name, name): tensor for name, tensor in found.items()}


def _olmo_names(keys: Collection[str]) -> dict[str, str]:
    """Return the names under which norms of outputs are read; of other tensors their own."""
    found: dict[str, str] = {}
    for key in keys:
        layer, _, name = key.rpartition(".post_")
        norms_outputs = f"{layer}.post_feedforward_layernorm.weight" in keys
        found[key] = f"{layer}.{_OUTPUT_NORMS.get(name, name)}" if norms_outputs else key
    return found


def _olmo_convolutions(names: Iterable[str]) -> list[list[str]]:
    """Return the names of each layer's convolutions of queries, keys and values."""
    first = [name for name in names if name.endswith(".q_conv1d.weight")]
    return [[name.replace(".q_conv1d.", f".{part}_conv1d.") for part in "qkv"] for name in first]


def _split_anew(arrays: Sequence[Any], names: Sequence[str], sizes: Sequence[int]) -> dict[str, Any]:
    """Split the rows of all arrays into parts of these sizes; the last has the rest."""
    return dict(zip(names, np.split(np.concatenate(arrays), np.cumsum(sizes)), strict=True))


def _qwen(config: Config, options: Options, attention: Options) -> Layers:
    count, dense = config["num_hidden_layers"], config.get("mlp_only_layers") or []
    experts, step = size(config, "num_experts", 0, least=0), size(config, "decoder_sparse_step", 1)
    expect(isinstance(dense, list), "mlp_only_layers", dense, "a list of layers")
    sparse = [index for index in range(count) if index not in dense and (index + 1) % step == 0]
    expected = f"0, or {sparse} in mlp_only_layers: experts are not supported"
    expect(not (experts and sparse), "num_experts", experts, expected)
    attention |= {"num_heads": config["num_attention_heads"], "use_gate": True}
    mixers = {
        "full_attention": mixer_spec("attention", options, **attention),
        "linear_attention": mixer_spec(
            "gated_delta_net", options, **delta_heads(config["hidden_size"], *linear_sizes(config))
        ),
    }
    interval = size(config, "full_attention_interval", 4)
    usual = ["linear_attention" if index % interval else "full_attention" for index in range(1, count + 1)]
    return layers_of(config, mixers, usual), {}


def linear_sizes(config: Config) -> list[int]:
    """Return the heads and channels of keys, then of values, in Qwen's layers without attention."""
    names = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")
    return [size(config, f"linear_{name}", 0) for name in names]


def text_tensors(config: Config, tensors: Tensors) -> dict[str, Any]:
    """Return the tensors of the text model, given all under Llama's names; log how many others there are."""
    text = {key: tensor for key, tensor in tensors.items() if is_text(key)}
    if len(text) < len(tensors):
        others = "%d tensors of visual and mtp were left out: only the text model is read"
        _LOG.warning(others, len(tensors) - len(text))
    parts, found = _parts(text_entries(config)), dict[str, Any]()
    for key, tensor in text.items():
        groups, sizes = _part(key, parts, tensor.shape)
        if not sizes:
            found[key] = np.asarray(tensor, np.float32) + 1 if _ZERO_CENTRED.search(key) else tensor
            continue
        grouped = tensor.reshape(groups, -1, *tensor.shape[1:])
        split = np.split(grouped, np.cumsum([*sizes.values()])[:-1], axis=1)
        found |= zip(sizes, (part.reshape(-1, *tensor.shape[1:]) for part in split), strict=True)
    return found


def text_stored(config: Config, tensors: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Invert `text_tensors` for a checkpoint of these shapes."""
    parts, found = _parts(text_entries(config)), dict(tensors)
    for key, shape in shapes.items():
        groups, sizes = _part(key, parts, shape)
        if sizes and all(part in found for part in sizes):
            split = [found.pop(part).reshape(groups, -1, *shape[1:]) for part in sizes]
            found[key] = np.concatenate(split, axis=1).reshape(-1, *shape[1:])
        elif _ZERO_CENTRED.search(key) and key in found:
            found[key] = np.asarray(found[key], np.float32) - 1
    return found


def _part(
    key: str, parts: Mapping[str, tuple[int, dict[str, int]]], shape: Sequence[int]
) -> tuple[int, dict[str, int]]:
    """Return a tensor's groups of rows, and the rows of each part by its name; none if it is not split."""
    parent, name, kind = ["", "", *key.rsplit(".", 2)][-3:]
    groups, sizes = parts.get(name, (1, {}))
    if (*shape[:1],) != (groups * sum(sizes.values()),):  # another shape is refused later, by name
        return 1, {}
    return groups, {f"{parent}.{part}.{kind}": rows for part, rows in sizes.items()}


def _parts(config: Config) -> dict[str, tuple[int, dict[str, int]]]:
    """Return for each tensor that is split its number of groups of rows, and the rows of each part in one."""
    heads, width, value_heads, value_width = linear_sizes(config)
    query_heads, shared = config["num_attention_heads"], value_heads // heads
    query = size(config, "head_dim", config["hidden_size"] // query_heads)
    q, k, v = heads * width, heads * width, value_heads * value_width
    return {
        "q_proj": (query_heads, {"q_proj": query, "g_proj": query}),
        "in_proj_qkv": (1, {"q_proj": q, "k_proj": k, "v_proj": v}),
        "conv1d": (1, {"q_conv1d": q, "k_conv1d": k, "v_conv1d": v}),
        "in_proj_qkvz": (
            heads,
            {"q_proj": width, "k_proj": width, "v_proj": v // heads, "g_proj": v // heads},
        ),
        "in_proj_ba": (heads, {"b_proj": shared, "a_proj": shared}),
    }


class Family(NamedTuple):
    """What is special about a `model_type`; the defaults are Llama's."""

    path: str
    """class whose entries a config has"""
    layers: Callable[[Config, Options, Options], Layers] = _softmax
    """function of a config, our options and those of its softmax attention"""
    attention: Mapping[str, Any] = {}
    """options of its softmax attention that no entry has"""
    aliases: Mapping[str, str] = {}
    """entries' names in older versions -> current names"""
    weights: Callable[[Config, Tensors], dict[str, Any]] = lambda config, tensors: dict(tensors)
    """change of the tensors, under Llama's names"""
    stored: Callable[[Config, Tensors, Shapes], dict[str, Any]] = lambda config, tensors, shapes: dict(
        tensors
    )
    """its inverse, for a checkpoint of these shapes"""
    names: str = ""
    """the `model_type` in `tables.RENAMED` that has its names"""
    entries: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: given
    """change of the entries, under their current names"""


_QK_NORM = {"qk_norm": True}
_NO_POSITIONS = {"rotary_fraction": 0.0}
_QWEN = Family("transformers.Qwen3_5Config", _qwen, _QK_NORM, {}, text_tensors, text_stored, "qwen3_5")

FAMILIES = {
    "falcon_mamba": Family("transformers.FalconMambaConfig", mamba.falcon_mamba, names="nemotron_h"),
    "granitemoehybrid": Family(
        "transformers.GraniteMoeHybridConfig",
        mamba.granite,
        aliases={"layers_block_type": "layer_types"},
        weights=mamba.with_multipliers,
        stored=mamba.without_multipliers,
        names="granitemoehybrid",
    ),
    "jamba": Family(
        "transformers.JambaConfig",
        mamba.jamba,
        _NO_POSITIONS,
        {"num_local_experts": "num_experts"},
        names="jamba",
    ),
    "lfm2": Family(
        "transformers.Lfm2Config",
        _lfm2,
        _QK_NORM,
        {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
        names="lfm2",
    ),
    "llama": Family("transformers.LlamaConfig"),
    "mistral": Family("transformers.MistralConfig"),
    "nemotron_h": Family(
        "transformers.NemotronHConfig",
        mamba.nemotron_h,
        _NO_POSITIONS,
        mamba.NEMOTRON_H_ALIASES,
        names="nemotron_h",
        entries=mamba.nemotron_h_entries,
    ),
    "olmo_hybrid": Family(
        "transformers.OlmoHybridConfig",
        _olmo,
        {"qk_norm": "all"},
        {},
        olmo_tensors,
        olmo_stored,
        "olmo_hybrid",
    ),
    "qwen2": Family("transformers.Qwen2Config", attention={"qkv_bias": True}),
    "qwen3": Family("transformers.Qwen3Config", attention=_QK_NORM),
    "qwen3_5": _QWEN,
    "qwen3_5_text": _QWEN._replace(path="transformers.Qwen3_5TextConfig"),
    "qwen3_next": _QWEN._replace(path="transformers.Qwen3NextConfig"),
}
"""By `model_type`."""
