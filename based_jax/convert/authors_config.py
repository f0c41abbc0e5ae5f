"""Convert the config.json of the authors' GPT (flash-attention's, and Based's) to a `ModelConfig`.

Each layer's mixer is `alt_mixer_2` if the layer is in `alt_mixer_2_layers`, else `alt_mixer` if it is in
`alt_mixer_layers`, else `mixer`, or multi-head attention if the config names no mixer (`authors_layers`).
"""

import math
from typing import Any

from based_jax.convert.authors_layers import SLOTS, expect_entry, layer_mixer
from based_jax.convert.config_values import (
    Config,
    expect_sizes,
    flag,
    number,
    schedule_of,
    section,
    size,
    with_current_names,
)
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import expect_known, model_fields, read
from based_jax.convert.tables import AUTHORS
from based_jax.models import ModelConfig
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


def authors_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`."""
    config = {**GPT2_SIZES, **with_current_names(config, ALIASES)}
    path = f"{'based' if any(config.get(slot) for slot in SLOTS) else 'flash_attn'}.models.gpt.GPTLMHeadModel"
    expect_known(path, config, "config.json")
    expect_sizes(config, shapes, AUTHORS, "n_embd", "n_head")
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


MLP_MULTIPLES = (256, 128)
"""Based's gated MLP rounds its width up to a multiple of 256, flash-attention's to one of 128."""
