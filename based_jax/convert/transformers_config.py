"""Convert the config.json of Llama, Mistral and Qwen to a `ModelConfig` (`transformers`).

Pre-norm blocks of softmax attention and a SwiGLU MLP, with RMS norms and rotary positions. Llama 2 and 3 are
`llama`; Qwen2 and Qwen2.5 are `qwen2`; `qwen3` is the dense Qwen3. In Qwen3.5 (`qwen3_5`, of which the text
model is read) and Qwen3-Next, without its mixtures of experts, most layers are a Gated DeltaNet. The meaning
of each entry is in `options.json` and in docs/options.md.
"""

from typing import Any

from based_jax.convert.config_values import (
    Config,
    delta_heads,
    expect_sizes,
    flag,
    number,
    schedule_of,
    section,
    size,
)
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
    "qwen3_5": "transformers.Qwen3_5Config",
    "qwen3_5_text": "transformers.Qwen3_5TextConfig",
    "qwen3_next": "transformers.Qwen3NextConfig",
}
"""`model_type` -> the class whose entries a config has."""

HYBRIDS = ("qwen3_5", "qwen3_5_text", "qwen3_next")
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def transformers_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`.

    Raises:
        ValueError: an unsupported option, or a missing entry.
    """
    config = text_entries(config)
    kind = config["model_type"]
    names = NAMES["qwen hybrid" if kind in HYBRIDS else "transformers"]
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    expect_sizes(config, shapes, names, *sizes, layers="num_hidden_layers")
    options, attention = read(CLASSES[kind], config), _attention(config)
    specs = {FULL: mixer_spec("attention", options, **attention)}
    if (window := size(config, "sliding_window", None)) is not None:  # theirs includes the query
        specs[SLIDING] = mixer_spec("sliding_window", options, left=window - 1, **attention)
    if kind in HYBRIDS:
        delta = delta_heads(config["hidden_size"], *linear_sizes(config))
        specs[LINEAR] = mixer_spec("gated_delta_net", options, **delta)
    if "num_experts" in config:
        _expect_dense(config)
    fixed: dict[str, Any] = {"mlp": "gated", "norm": "rms", "pad_vocab_multiple": 1}
    schedule = schedule_of([specs[layer] for layer in _layers(config)])
    return ModelConfig(**{**model_fields(options), **schedule, **fixed})


def text_entries(config: Config) -> dict[str, Any]:
    """Return the entries of a text model with their defaults; Qwen3.5's are in `text_config`.

    Raises:
        ValueError: an unsupported option.
    """
    kind, given = config["model_type"], own_entries(config)
    expect_known(CLASSES[kind], given, "config.json")
    if kind == "qwen3_5":
        kind, tied = "qwen3_5_text", given.get("tie_word_embeddings")
        given = {"tie_word_embeddings": tied, **own_entries(section(given, "text_config"))}
        expect_known(CLASSES[kind], given, "text_config")
    return with_defaults(CLASSES[kind], given) | {"model_type": kind}


def linear_sizes(config: Config) -> list[int]:
    """Return the heads and channels of keys, then of values, in layers of linear attention."""
    names = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")
    return [size(config, f"linear_{name}", 0) for name in names]


def _expect_dense(config: Config) -> None:
    """Check that no layer of Qwen3-Next is a mixture of experts."""
    count, dense = size(config, "num_experts", 0, least=0), config.get("mlp_only_layers") or []
    expect(isinstance(dense, list), "mlp_only_layers", dense, "a list of layers")
    step = size(config, "decoder_sparse_step", 1)
    sparse = [i for i in range(config["num_hidden_layers"]) if i not in dense and (i + 1) % step == 0]
    expected = f"0, or {sparse} in mlp_only_layers: mixtures of experts are not supported"
    expect(not (count and sparse), "num_experts", count, expected)


def _attention(config: Config) -> dict[str, Any]:
    """Return the options of softmax attention that are not one entry each; null heads have defaults."""
    kind, heads = config["model_type"], config["num_attention_heads"]
    head_dim = size(config, "head_dim", config["hidden_size"] // heads)
    has_bias = flag(config, "attention_bias", False)
    options: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": size(config, "num_key_value_heads", heads),
        "head_dim": head_dim,
        "qkv_bias": kind == "qwen2" or has_bias,
        "out_bias": has_bias,
    }
    if kind.startswith("qwen3"):
        options |= {"qk_norm": True, "qk_norm_eps": number(config, "rms_norm_eps", 1e-6)}
        options["use_gate"] = kind in HYBRIDS
    return options | rotary_options(config, head_dim)


def _layers(config: Config) -> list[str]:
    """Return the kind of each layer: `FULL`, `SLIDING` or `LINEAR`."""
    count, has_window = config["num_hidden_layers"], config.get("sliding_window") is not None
    if "layer_types" not in config:
        return [SLIDING if has_window else FULL] * count  # Mistral's is in every layer, and Llama has none
    used = flag(config, "use_sliding_window", False) and has_window
    if config["model_type"] in HYBRIDS:
        known, step = (FULL, LINEAR), size(config, "full_attention_interval", 4)
        usual = [LINEAR if (index + 1) % step else FULL for index in range(count)]
    else:
        known, first = (FULL, SLIDING), size(config, "max_window_layers", count, least=0)
        usual = [SLIDING if used and index >= first else FULL for index in range(count)]
    kinds: Any = usual if config["layer_types"] is None else config["layer_types"]
    fits = isinstance(kinds, list) and len(kinds) == count and all(kind in known for kind in kinds)
    expect(fits, "layer_types", kinds, f"{' or '.join(known)} for each of {count} layers")
    expect(used or SLIDING not in kinds, "layer_types", kinds, f"{FULL} only without use_sliding_window")
    return kinds
