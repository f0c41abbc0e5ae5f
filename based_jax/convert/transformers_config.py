"""Convert the config.json of Llama, Mistral, Qwen2 and Qwen3 to a `ModelConfig` (`transformers`).

Pre-norm blocks of softmax attention and a SwiGLU MLP, with RMS norms and rotary positions. Llama 2 and 3 are
`llama`; Qwen2 and Qwen2.5 are `qwen2`; `qwen3` is the dense Qwen3. The meaning of each entry is in
`options.json` and in docs/options.md.
"""

from typing import Any

from based_jax.convert.config_values import Config, expect_sizes, flag, number, schedule_of, size
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import (
    expect_known,
    mixer_spec,
    model_fields,
    own_entries,
    read,
    with_defaults,
)
from based_jax.convert.rotary_scaling import rotary_options
from based_jax.convert.tables import NAMES
from based_jax.models import ModelConfig
from based_jax.validate import expect

CLASSES = {
    "llama": "transformers.LlamaConfig",
    "mistral": "transformers.MistralConfig",
    "qwen2": "transformers.Qwen2Config",
    "qwen3": "transformers.Qwen3Config",
}
"""`model_type` -> the class whose entries a config has."""

FULL, SLIDING = "full_attention", "sliding_attention"


def transformers_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`.

    Raises:
        ValueError: an unsupported option, or a missing entry.
    """
    path, config = CLASSES[config["model_type"]], own_entries(config)
    expect_known(path, config, "config.json")
    config = with_defaults(path, config)
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    expect_sizes(config, shapes, NAMES["transformers"], *sizes, layers="num_hidden_layers")
    options = read(path, config)
    attention = _attention(config)
    specs = [
        mixer_spec("attention", options, **attention)
        if window is None
        else mixer_spec("sliding_window", options, left=window - 1, **attention)  # theirs includes the query
        for window in _windows(config)
    ]
    fixed: dict[str, Any] = {"mlp": "gated", "norm": "rms", "pad_vocab_multiple": 1}
    return ModelConfig(**{**model_fields(options), **schedule_of(specs), **fixed})


def _attention(config: Config) -> dict[str, Any]:
    """Return the options of softmax attention that are not one entry each; null heads have defaults."""
    kind, heads = config["model_type"], config["num_attention_heads"]
    head_dim = size(config, "head_dim", config["hidden_size"] // heads)
    has_bias = flag(config, "attention_bias", False)
    options: dict[str, Any] = {
        "num_kv_heads": size(config, "num_key_value_heads", heads),
        "head_dim": head_dim,
        "qkv_bias": kind == "qwen2" or has_bias,
        "out_bias": has_bias,
    }
    if kind == "qwen3":
        options |= {"qk_norm": True, "qk_norm_eps": number(config, "rms_norm_eps", 1e-6)}
    return options | rotary_options(config, head_dim)


def _windows(config: Config) -> list[int | None]:
    """Return each layer's window, in tokens with the query; None is full attention."""
    count, window = config["num_hidden_layers"], size(config, "sliding_window", None)
    if "use_sliding_window" not in config:
        return [window] * count  # Mistral's is in every layer, and Llama has none
    used = flag(config, "use_sliding_window", False) and window is not None
    first = size(config, "max_window_layers", count, least=0)
    kinds = config["layer_types"]
    if kinds is None:
        kinds = [SLIDING if used and index >= first else FULL for index in range(count)]
    fits = isinstance(kinds, list) and len(kinds) == count and all(kind in (FULL, SLIDING) for kind in kinds)
    expect(fits, "layer_types", kinds, f"{FULL} or {SLIDING} for each of {count} layers")
    expect(used or SLIDING not in kinds, "layer_types", kinds, f"{FULL} only without use_sliding_window")
    return [window if kind == SLIDING else None for kind in kinds]
