"""Convert the config.json of Llama, Mistral, Qwen2, Qwen3 and hybrids to a `ModelConfig` (`transformers`).

Pre-norm blocks of softmax attention and a SwiGLU MLP, with RMS norms and rotary positions; hybrids have other
mixers in most layers (`transformers_hybrids`). Llama 2 and 3 are `llama`; Qwen2 and Qwen2.5 are `qwen2`;
`qwen3` is the dense Qwen3. The meaning of each entry is in `options.json` and in docs/options.md.
"""

from typing import Any

from based_jax.convert.config_values import Config, expect_sizes, flag, layers_of, schedule_of, section, size
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import mixer_spec, model_fields, own_entries, read, tables, with_defaults
from based_jax.convert.rotary_scaling import rotary_options
from based_jax.convert.tables import NAMES
from based_jax.convert.transformers_hybrids import HYBRIDS
from based_jax.models import MixerSpec, ModelConfig

CLASSES = {
    "granitemoehybrid": "transformers.GraniteMoeHybridConfig",
    "lfm2": "transformers.Lfm2Config",
    "llama": "transformers.LlamaConfig",
    "mistral": "transformers.MistralConfig",
    "qwen2": "transformers.Qwen2Config",
    "qwen3": "transformers.Qwen3Config",
    "qwen3_5": "transformers.Qwen3_5Config",
    "qwen3_5_text": "transformers.Qwen3_5TextConfig",
    "qwen3_next": "transformers.Qwen3NextConfig",
}
"""`model_type` -> the class whose entries a config has."""

ALIASES = {
    "granitemoehybrid": {"layers_block_type": "layer_types"},
    "lfm2": {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
}
"""`model_type` -> entries' names in older versions -> current names."""


def transformers_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`.

    Raises:
        ValueError: an unsupported option, or a missing entry.
    """
    config = text_entries(config)
    kind, path = config["model_type"], CLASSES[config["model_type"]]
    required = [name for name, option in tables()[path].items() if not option.default]
    expect_sizes(config, shapes, NAMES["transformers"], *required, layers="num_hidden_layers")
    options = read(path, config)
    specs, more = HYBRIDS.get(kind, _softmax)(config, options, _attention(config, options))
    fixed: dict[str, Any] = {"mlp": "gated", "norm": "rms", "pad_vocab_multiple": 1}
    return ModelConfig(**{**model_fields(options), **schedule_of(specs), **fixed, **more})


def text_entries(config: Config) -> dict[str, Any]:
    """Return the entries of a text model with their defaults; Qwen3.5's are in `text_config`.

    Raises:
        ValueError: an unsupported option.
    """
    kind = config["model_type"]
    given = own_entries(CLASSES[kind], config, ALIASES.get(kind, {}))
    if kind == "qwen3_5":
        kind, text = "qwen3_5_text", section(given, "text_config")
        tied = {"tie_word_embeddings": given.get("tie_word_embeddings")}
        given = own_entries(CLASSES[kind], {**tied, **text}, {}, "text_config")
    return with_defaults(CLASSES[kind], given) | {"model_type": kind}


def _attention(config: Config, options: Config) -> dict[str, Any]:
    """Return the options of softmax attention that are not one entry each; null heads have defaults."""
    kind, heads = config["model_type"], config["num_attention_heads"]
    head_dim = size(config, "head_dim", config["hidden_size"] // heads)
    has_bias = flag(config, "attention_bias", False)
    found: dict[str, Any] = {
        "num_kv_heads": size(config, "num_key_value_heads", heads),
        "head_dim": head_dim,
        "qkv_bias": kind == "qwen2" or has_bias,
        "out_bias": has_bias,
    }
    if kind.startswith(("lfm2", "qwen3")):
        found |= {"qk_norm": True, "qk_norm_eps": options["norm_eps"]}
    if config.get("position_embedding_type", "rope") != "rope":
        return found | {"rotary_fraction": 0.0}
    return found | rotary_options(config, head_dim)


def _softmax(
    config: Config, options: dict[str, Any], attention: dict[str, Any]
) -> tuple[list[MixerSpec], dict[str, Any]]:
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
