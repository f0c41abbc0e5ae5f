"""Convert the config.json of fla's models to a `ModelConfig` (flash-linear-attention, fla/models).

GLA, RetNet, DeltaNet and Gated DeltaNet have pre-norm blocks of a mixer and a SwiGLU MLP, with RMS norms and
optionally softmax attention in some layers. Mamba-2's blocks are a norm and a mixer. The meaning of each
entry is in `options.fla` and in docs/options.md.
"""

import math
from typing import Any

from based_jax.convert.config_values import Config, expect_sizes, number, schedule_of, size
from based_jax.convert.fla_layers import MIXERS, attention_layers, mamba2_form
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import mixer_spec, model_fields, own_entries, read, with_defaults
from based_jax.convert.tables import NAMES
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

MLP_MULTIPLE = 256
"""Their MLP rounds its width up to a multiple of this."""


def fla_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`.

    Raises:
        ValueError: an unsupported option, or a missing entry.
    """
    kind = config["model_type"]
    is_mamba2 = kind == "mamba2"
    form = mamba2_form(config) if is_mamba2 else {}
    config = own_entries(CLASSES[kind], config, ALIASES)
    names = NAMES["fla mamba2" if is_mamba2 else "fla"]
    expect_sizes(config, shapes, names, "hidden_size", layers="num_hidden_layers")
    given = {name: value for name, value in (config | form).items() if value is not None}
    config = with_defaults(CLASSES[kind], given)
    options = read(CLASSES[kind], given)
    mixer, of_mixer = MIXERS[kind]
    own = mixer_spec(mixer, options, **of_mixer(config))
    attention = {} if is_mamba2 else attention_layers(config)
    fields: dict[str, Any] = {
        **model_fields(options),
        **schedule_of([attention.get(index, own) for index in range(config["num_hidden_layers"])]),
        **({"mlp": "none"} if is_mamba2 else {"mlp": "gated", "mlp_hidden": _mlp_hidden(config)}),
        "norm": "rms",
        "pad_vocab_multiple": 1,
    }
    return ModelConfig(**fields)


def _mlp_hidden(config: Config) -> int:
    """Return the MLP's width as computed by their constructor."""
    wanted = int(config["hidden_size"] * number(config, "hidden_ratio", 4) * 2 / 3)
    return size(config, "intermediate_size", math.ceil(wanted / MLP_MULTIPLE) * MLP_MULTIPLE)
