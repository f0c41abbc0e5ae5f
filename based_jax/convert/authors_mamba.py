"""Convert Mamba's own config.json to a `ModelConfig`: Mamba layers, optionally with attention in some.

Their blocks are r = r + h;  h = mixer(norm(r)), and with `d_intermediate` a gated MLP with its own norm.
"""

import math
from typing import Any

from based_jax.convert.config_values import Config, expect_sizes, flag, fraction, schedule_of, section, size
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import expect_known, mixer_spec, model_fields, read
from based_jax.convert.tables import NAMES
from based_jax.models import MixerSpec, ModelConfig
from based_jax.validate import expect

MLP_MULTIPLE = 128
"""Their gated MLP rounds its width up to a multiple of this."""

MODEL = "mamba_ssm.models.config_mamba.MambaConfig"
MAMBA = "mamba_ssm.modules.mamba_simple.Mamba"
ATTENTION = "mamba_ssm.modules.mha.MHA"


def mamba_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`.

    Raises:
        ValueError: an unsupported option, a missing entry, or one that their code does not have.
    """
    expect_known(MODEL, config, "config.json")
    expect_sizes(config, shapes, NAMES["mamba"], "d_model")
    layers, inner = config["n_layer"], size(config, "d_intermediate", 0, least=0)
    listed = config.get("attn_layer_idx") or ()
    fits = isinstance(listed, list | tuple) and all(type(i) is int and 0 <= i < layers for i in listed)
    expect(fits, "attn_layer_idx", listed, f"a list of layers below {layers}")
    expect_known(ATTENTION, section(config, "attn_cfg"), "attn_cfg")  # even if no layer has attention
    mamba, attention = _mamba(config), _attention(config) if listed else None
    fields: dict[str, Any] = {
        **model_fields(read(MODEL, config)),
        **schedule_of([attention if attention and i in listed else mamba for i in range(layers)]),
        "mlp": "gated" if inner else "none",
        "mlp_hidden": math.ceil(inner / MLP_MULTIPLE) * MLP_MULTIPLE,
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


def _attention(config: Config) -> MixerSpec:
    given = section(config, "attn_cfg")
    expect(flag(given, "causal", False), "attn_cfg.causal", given.get("causal"), "true in a language model")
    heads = size(given, "num_heads", 0)
    expect(heads > 0, "attn_cfg.num_heads", given.get("num_heads"), "a positive integer")
    width = size(given, "head_dim", None) or max(config["d_model"] // heads, 1)
    turned = size(given, "rotary_emb_dim", 0, least=0, most=width)
    return mixer_spec("attention", read(ATTENTION, given), rotary_fraction=fraction(turned, width))
