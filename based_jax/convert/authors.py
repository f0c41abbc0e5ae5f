"""Convert the config.json of the authors' models to a `ModelConfig`: flash-attention's GPT, Based's, Mamba's.

Each layer's mixer of a GPT is `alt_mixer_2` if the layer is in `alt_mixer_2_layers`, else `alt_mixer` if it
is in `alt_mixer_layers`, else `mixer`, or multi-head attention if the config names no mixer. An entry holds
the arguments of a mixer's constructor, and nothing else of the config affects it, with two exceptions, as in
their code: a layer without an entry is attention whose arguments come from the config, and these arguments
also replace those of an entry for sliding windows.

Mamba's blocks are r = r + h;  h = mixer(norm(r)), and with `d_intermediate` a gated MLP with its own norm.
"""

import math
from typing import Any

from based_jax.convert.layouts import Shapes
from based_jax.convert.options import (
    Config,
    expect_known,
    expect_sizes,
    flag,
    fraction,
    heads_of,
    mixer_spec,
    model_fields,
    number,
    read,
    schedule_of,
    section,
    size,
    with_current_names,
)
from based_jax.convert.references.mixers import ATTENTION, BASE_CONV, MIXERS
from based_jax.convert.tables import AUTHORS
from based_jax.models import MixerSpec, ModelConfig
from based_jax.models.config import MAX_LAYERS
from based_jax.validate import expect, expect_choice

GATED_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}
"""Their name of a gated MLP -> the activation of our gate."""

PLAIN_ACTIVATIONS = {
    "gelu": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_approx", "gelu_pytorch_tanh"), "gelu_tanh"),
    "relu": "relu",
    "sqrelu": "squared_relu",
}
"""Their name of a plain MLP -> our activation."""

ALIASES = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
"""Aliases of entries in transformers' GPT2Config."""

GPT2_POSITIONS = 1024
GPT2_SIZES = {"n_head": 12, "n_layer": 12}
"""Defaults of transformers' GPT2Config."""

MLP_MULTIPLES = (256, 128)
"""Based's gated MLP rounds its width up to a multiple of 256, flash-attention's and Mamba's to one of 128."""

SLOTS = ("mixer", "alt_mixer", "alt_mixer_2")
"""Entries that hold a mixer; later ones take precedence in the layers listed in their entry NAME_layers."""

SLIDING = "slide"
"""Paths of classes that contain this take the arguments of the config's attention."""

MAMBA_MODEL = "mamba_ssm.models.config_mamba.MambaConfig"
MAMBA = "mamba_ssm.modules.mamba_simple.Mamba"
MAMBA_ATTENTION = "mamba_ssm.modules.mha.MHA"


def authors_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`."""
    config = {**GPT2_SIZES, **with_current_names(config, ALIASES)}
    path = f"{'based' if any(config.get(slot) for slot in SLOTS) else 'flash_attn'}.models.gpt.GPTLMHeadModel"
    expect_known(path, config, "config.json")
    expect_sizes(config, "n_embd", "n_head")
    for slot in SLOTS:
        if section(config, slot):
            expect_entry(config, slot)
        listed, wanted = config.get(f"{slot}_layers"), f"a list of at most {MAX_LAYERS} layers or null"
        fits = isinstance(listed or [], list) and len(listed or []) <= MAX_LAYERS
        expect(fits, f"{slot}_layers", listed, wanted)
    specs = [layer_mixer(config, index, shapes) for index in range(config["n_layer"])]
    has_norm_bias = f"{AUTHORS.layer(0)}.norm1.bias" in shapes
    fields: dict[str, Any] = {
        **model_fields(read(path, config)),
        **schedule_of(specs),
        **_mlp(config, shapes),
        "block": _block(config),
        "norm": "rms" if flag(config, "rms_norm", bool(shapes) and not has_norm_bias) else "layer",
        "max_positions": _positions(config, shapes),
        # 0 where transformers wrote the config of a model without position embeddings.
        "max_length": size(config, "n_positions", GPT2_POSITIONS, least=0) or GPT2_POSITIONS,
    }
    return ModelConfig(**fields)


def _block(config: Config) -> str:
    is_parallel = flag(config, "parallel_block", False)
    tied = "_tied" if flag(config, "parallel_block_tied_norm", False) else ""
    if not flag(config, "prenorm", True):
        expect(not is_parallel, "parallel_block", True, "false where prenorm is false")
        return "postnorm"
    return f"parallel{tied}" if is_parallel else "prenorm"


def _positions(config: Config, shapes: Shapes) -> int:
    """Return the rows of the position embedding: `n_positions`, unless another entry sets them."""
    table = shapes.get(f"{AUTHORS.backbone}.embeddings.position_embeddings.weight")
    given = config.get("max_position_embeddings", config.get("n_positions", GPT2_POSITIONS))
    if "max_position_embeddings" not in config and shapes:
        return 0 if table is None else table[0]
    return max(size({"max_position_embeddings": given}, "max_position_embeddings", 0, least=-1), 0)


def _mlp(config: Config, shapes: Shapes) -> dict[str, Any]:
    activation, prefix = config.get("activation_function", "gelu_new"), f"{AUTHORS.layer(0)}.{AUTHORS.mlp}"
    expect_choice("activation_function", activation, (*GATED_ACTIVATIONS, *PLAIN_ACTIVATIONS))
    biases = [
        flag(config, f"mlp_{name}_bias", f"{prefix}.{name}.bias" in shapes if shapes else True)
        for name in ("fc1", "fc2")
    ]
    is_gated = activation in GATED_ACTIVATIONS
    widths = _mlp_widths(config, is_gated)
    width = shapes.get(f"{prefix}.fc2.weight", widths[:1])[-1]
    if is_gated and shapes:
        found = "alt" if f"{prefix}.fc3.weight" in shapes else "base"
        fits = (found == "alt") == is_alt(config)
        expect(fits, "mlp_type", config.get("mlp_type"), f"{found!r}, as the weights are")
    return {
        "mlp": "gated" if is_gated else "plain",
        "mlp_hidden": width if width in widths else widths[0],
        "mlp_activation": {**GATED_ACTIVATIONS, **PLAIN_ACTIVATIONS}[activation],
        "mlp_bias": biases[0],
        "mlp_out_bias": None if biases[0] == biases[1] else biases[1],
    }


def is_alt(config: Config) -> bool:
    """Return whether a gated MLP has its two matrices apart (fc3)."""
    return config.get("mlp_type", "base") != "base"


def _mlp_widths(config: Config, is_gated: bool) -> tuple[int, ...]:
    """Return the widths that their constructors round to; without weights it is the first."""
    d_model, inner = config["n_embd"], size(config, "n_inner", None)
    if not is_gated:
        return (4 * d_model if inner is None else inner,)
    wanted = int(8 * d_model / 3) if inner is None else inner
    if is_alt(config):
        wanted = int(2 * d_model * number(config, "ff_mult", 2) / 3)
    given = size(config, "mlp_multiple_of", None)
    multiples = MLP_MULTIPLES if given is None else (given,)
    return tuple(math.ceil(wanted / multiple) * multiple for multiple in multiples)


def layer_mixer(config: Config, index: int, shapes: Shapes) -> MixerSpec:
    """Return the mixer of one layer."""
    listed = [slot for slot in SLOTS[1:] if index in (config.get(f"{slot}_layers") or ())]
    name = listed[-1] if listed else SLOTS[0]
    prefix = f"{AUTHORS.layer(index)}.{AUTHORS.mixer}."
    own = {key.removeprefix(prefix): shape for key, shape in shapes.items() if key.startswith(prefix)}
    if not config.get(name):
        arguments = _attention(config, own, index)
        if not any(config.get(slot) for slot in SLOTS):  # Based's code does not read the window
            arguments["window_size"] = config.get("window_size")
        return MIXERS[ATTENTION].spec(arguments)
    path, arguments = expect_entry(config, name)
    if SLIDING in path:
        arguments |= _attention(config, own, index)
    if path == BASE_CONV and own:
        has_bias = "conv.conv.bias" in own
        given = arguments.setdefault("conv_bias", has_bias)
        expect(given == has_bias, f"{name}.conv_bias", given, f"{has_bias}, as the weights have it")
    try:
        return MIXERS[path].spec({"d_model": config["n_embd"], **arguments})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def expect_entry(config: Config, name: str) -> tuple[str, dict[str, Any]]:
    """Return the path of the class and the arguments of an entry."""
    arguments = dict(config[name])
    path = arguments.pop("_target_", None)
    expect_choice(f"{name}._target_", path, [path for path in MIXERS if not path.startswith("zoology.")])
    expect_known(path, arguments, name)
    return path, arguments


def _attention(config: Config, shapes: Shapes, index: int) -> dict[str, Any]:
    """Return the arguments of attention that their code takes from the config."""
    heads, d_model = config["n_head"], config["n_embd"]
    # This entry affects the scale and the rotary channels, not the heads' width.
    width = size(config, "head_dim", max(d_model // heads, 1))
    scale = width**-0.5 if flag(config, "scale_attn_weights", True) else 1.0
    if flag(config, "scale_attn_by_inverse_layer_idx", False):
        scale /= index + 1
    return {
        "d_model": d_model,
        "causal": True,
        "num_heads": heads,
        "num_heads_kv": config.get("n_head_kv"),
        "softmax_scale": scale,
        "dropout": number(config, "attn_pdrop", 0.1),
        "rotary_emb_dim": int(number(config, "rotary_emb_fraction", 0.0) * width),
        "rotary_emb_base": config.get("rotary_emb_base"),
        "rotary_emb_interleaved": config.get("rotary_emb_interleaved"),
        "qkv_proj_bias": flag(config, "qkv_proj_bias", "Wqkv.bias" in shapes if shapes else True),
        "out_proj_bias": flag(config, "out_proj_bias", "out_proj.bias" in shapes if shapes else True),
    }


def mamba_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`."""
    expect_known(MAMBA_MODEL, config, "config.json")
    expect_sizes(config, "d_model")
    layers, inner = config["n_layer"], size(config, "d_intermediate", 0, least=0)
    listed = config.get("attn_layer_idx") or ()
    fits = isinstance(listed, list | tuple) and all(type(i) is int and 0 <= i < layers for i in listed)
    expect(fits, "attn_layer_idx", listed, f"a list of layers below {layers}")
    expect_known(MAMBA_ATTENTION, section(config, "attn_cfg"), "attn_cfg")  # even if no layer has attention
    mamba, attention = _mamba(config), _mamba_attention(config) if listed else None
    fields: dict[str, Any] = {
        **model_fields(read(MAMBA_MODEL, config)),
        **schedule_of([attention if attention and i in listed else mamba for i in range(layers)]),
        "mlp": "gated" if inner else "none",
        "mlp_hidden": math.ceil(inner / MLP_MULTIPLES[1]) * MLP_MULTIPLES[1],
        "norm": "rms" if flag(config, "rms_norm", True) else "layer",
    }
    return ModelConfig(**fields)


def _mamba(config: Config) -> MixerSpec:
    ssm = section(config, "ssm_cfg")
    expect_known(MAMBA, ssm, "ssm_cfg")
    options = read(MAMBA, ssm)
    if options["dt_rank"] == "auto":
        del options["dt_rank"]
    return mixer_spec("mamba", options, num_layers=config["n_layer"])


def _mamba_attention(config: Config) -> MixerSpec:
    given = section(config, "attn_cfg")
    expect(flag(given, "causal", False), "attn_cfg.causal", given.get("causal"), "true in a language model")
    width = size(given, "head_dim", None) or max(config["d_model"] // heads_of(given, "attn_cfg."), 1)
    turned = size(given, "rotary_emb_dim", 0, least=0, most=width)
    return mixer_spec("attention", read(MAMBA_ATTENTION, given), rotary_fraction=fraction(turned, width))
