"""Convert Mamba's own config.json to a `ModelConfig`: Mamba layers, optionally with attention in some.

Their blocks are r = r + h;  h = mixer(norm(r)), and with `d_intermediate` a gated MLP with its own norm.
"""

import math
from typing import Any

from based_jax.convert.config_values import Config, expect_sizes, flag, fraction, number, size
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import expect_known
from based_jax.convert.tables import MAMBA_MODEL
from based_jax.models import MixerSpec, ModelConfig
from based_jax.validate import expect

SSM_OPTIONS = {
    **{name: name for name in ("d_state", "d_conv", "expand", "dt_rank", "dt_min", "dt_max")},
    "dt_init_floor": "dt_floor",
    **{name: name for name in ("dt_init", "dt_scale", "bias", "conv_bias")},
}
"""Entries of their `ssm_cfg` -> options of our Mamba."""

VOCAB_SIZE = 50277
"""Default of their config."""

MLP_MULTIPLE = 128
"""Their gated MLP rounds its width up to a multiple of this."""

MODEL = "mamba_ssm.models.config_mamba.MambaConfig"
MAMBA = "mamba_ssm.modules.mamba_simple.Mamba"
ATTENTION = "mamba_ssm.modules.mha.MHA"


def mamba_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `authors_config.model_config`.

    Raises:
        ValueError: an unsupported option, a missing entry, or one that their code does not have.
    """
    expect_known(MODEL, config, "config.json")
    expect_sizes(config, shapes, MAMBA_MODEL, "d_model")
    layers, inner = config["n_layer"], size(config, "d_intermediate", 0, least=0)
    listed = config.get("attn_layer_idx") or ()
    fits = isinstance(listed, list | tuple) and all(type(i) is int and 0 <= i < layers for i in listed)
    expect(fits, "attn_layer_idx", listed, f"a list of layers below {layers}")
    schedule = "".join("A" if index in listed else "M" for index in range(layers))
    expect_known(ATTENTION, _entry(config, "attn_cfg"), "attn_cfg")  # even if no layer has attention
    mixers = {"M": _mamba(config), **({"A": _attention(config)} if listed else {})}
    return ModelConfig(
        vocab_size=size(config, "vocab_size", VOCAB_SIZE),
        d_model=config["d_model"],
        schedule=schedule,
        mixers={letter: spec for letter, spec in mixers.items() if letter in schedule},
        mlp="gated" if inner else "none",
        mlp_hidden=math.ceil(inner / MLP_MULTIPLE) * MLP_MULTIPLE,
        norm="rms" if flag(config, "rms_norm", True) else "layer",
        norm_eps=number(config, "norm_epsilon", 1e-5),
        residual_in_fp32=flag(config, "residual_in_fp32", True),
        tie_embeddings=flag(config, "tie_embeddings", True),
        pad_vocab_multiple=size(config, "pad_vocab_size_multiple", 8),
        max_length=size(config, "n_positions", 2048),
    )


def _entry(config: Config, name: str) -> Config:
    entry = config.get(name) or {}
    expect(isinstance(entry, dict), name, entry, "a JSON object or null")
    return entry


def _mamba(config: Config) -> MixerSpec:
    ssm = _entry(config, "ssm_cfg")
    expect_known(MAMBA, ssm, "ssm_cfg")
    options = {SSM_OPTIONS[name]: ssm[name] for name in ssm if name in SSM_OPTIONS and ssm[name] != "auto"}
    return MixerSpec("mamba", {"num_layers": config["n_layer"], **options})


def _attention(config: Config) -> MixerSpec:
    given = _entry(config, "attn_cfg")
    expect(flag(given, "causal", False), "attn_cfg.causal", given.get("causal"), "true in a language model")
    heads = size(given, "num_heads", 0)
    expect(heads > 0, "attn_cfg.num_heads", given.get("num_heads"), "a positive integer")
    head_dim = size(given, "head_dim", None)
    width = head_dim or max(config["d_model"] // heads, 1)
    options: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": size(given, "num_heads_kv", None),
        "head_dim": head_dim,
        "scale": given.get("softmax_scale"),
        "rotary_fraction": fraction(size(given, "rotary_emb_dim", 0, least=0, most=width), width),
        "rotary_base": number(given, "rotary_emb_base", 10000.0),
        "rotary_interleaved": flag(given, "rotary_emb_interleaved", False),
        "qkv_bias": flag(given, "qkv_proj_bias", True),
        "out_bias": flag(given, "out_proj_bias", True),
    }
    return MixerSpec("attention", {name: value for name, value in options.items() if value is not None})
