"""Convert the config.json of fla's models to a `ModelConfig` (flash-linear-attention, fla/models).

GLA, RetNet, DeltaNet and Gated DeltaNet have pre-norm blocks of a mixer and a SwiGLU MLP, with RMS norms and
optionally softmax attention in some layers. Mamba-2's blocks are a norm and a mixer. The meaning of each
entry is in `options.fla` and in docs/options.md.
"""

import math
from typing import Any

from based_jax.convert.config_values import (
    Config,
    expect_sizes,
    flag,
    number,
    size,
    type_among,
    with_current_names,
)
from based_jax.convert.fla_layers import MIXERS, attention_layers, mamba2_form
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import expect_known, own_entries
from based_jax.convert.schedule import schedule_of
from based_jax.convert.tables import FLA, FLA_MAMBA2
from based_jax.models import ModelConfig

CLASSES = {
    "delta_net": "fla.models.DeltaNetConfig",
    "gated_deltanet": "fla.models.GatedDeltaNetConfig",
    "gla": "fla.models.GLAConfig",
    "mamba2": "fla.models.Mamba2Config",
    "retnet": "fla.models.RetNetConfig",
}
"""`model_type` -> the class whose entries a config has; see `options.fla`."""

ALIASES = {
    "layer_norm_epsilon": "norm_eps",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "rms_norm_eps": "norm_eps",
    "time_step_floor": "dt_init_floor",
    "time_step_limit": "dt_limit",
    "time_step_max": "dt_max",
    "time_step_min": "dt_min",
}
"""Entries' names in older versions and in `transformers` -> current names."""

VOCAB_SIZE = 32000
MLP_MULTIPLE = 256
"""Their MLP rounds its width up to a multiple of this."""


def fla_model_type(config: Config) -> str | None:
    """Return `model_type` if it is a supported fla model, else None."""
    return type_among(config, CLASSES)


def fla_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `authors_config.model_config`.

    Raises:
        ValueError: an unsupported option, or a missing entry.
    """
    kind = config["model_type"]
    form = mamba2_form(config) if kind == "mamba2" else {}
    config = with_current_names(config, ALIASES)
    expect_known(CLASSES[kind], own_entries(config), "config.json")
    names = FLA_MAMBA2 if kind == "mamba2" else FLA
    expect_sizes(config, shapes, names, "hidden_size", layers="num_hidden_layers")
    attention = {} if kind == "mamba2" else attention_layers(config)
    own = MIXERS[kind]({**config, **form})
    specs = [attention.get(index, own) for index in range(config["num_hidden_layers"])]
    options: dict[str, Any] = {"mlp": "none", "residual_in_fp32": flag(config, "residual_in_fp32", True)}
    if kind != "mamba2":
        options = {"mlp": "gated", "mlp_hidden": _mlp_hidden(config)}
        options["max_length"] = size(config, "max_position_embeddings", 2048)
    return ModelConfig(
        vocab_size=size(config, "vocab_size", VOCAB_SIZE),
        d_model=config["hidden_size"],
        **schedule_of(specs),
        **options,
        norm="rms",
        norm_eps=number(config, "norm_eps", 1e-5 if kind == "mamba2" else 1e-6),
        tie_embeddings=flag(config, "tie_word_embeddings", False),
        pad_vocab_multiple=1,
        init_std=number(config, "initializer_range", 0.02),
    )


def _mlp_hidden(config: Config) -> int:
    """Return the MLP's width as computed by their constructor."""
    ratio = 2 if config["model_type"] == "retnet" else 4
    wanted = int(config["hidden_size"] * number(config, "hidden_ratio", ratio) * 2 / 3)
    return size(config, "intermediate_size", math.ceil(wanted / MLP_MULTIPLE) * MLP_MULTIPLE)
