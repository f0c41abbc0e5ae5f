"""Convert the config.json of any supported model to a `ModelConfig`: choose the reader of its family.

The authors' configs have no model_type, or one of `MODEL_TYPES`: their Mamba models are those of Mamba's own
code, the others flash-attention's GPT (`authors`). Other families are chosen by
`model_type`. The meaning of each entry, and which ones their code ignores, is in `options.json` and in
docs/options.md.
"""

from collections.abc import Callable
from typing import Any

from based_jax.convert.authors import SLOTS, authors_config, mamba_config
from based_jax.convert.fla import FAMILIES as FLA
from based_jax.convert.fla import fla_config
from based_jax.convert.layouts import Shapes, Tensors
from based_jax.convert.options import Config
from based_jax.convert.state_dict import current_name, renamed
from based_jax.convert.tables import NAMES
from based_jax.convert.transformers import FAMILIES, transformers_config
from based_jax.models import ModelConfig
from based_jax.validate import expect

READERS: dict[str, Callable[[Config, Shapes], ModelConfig]] = {
    "attn": authors_config,
    "based": authors_config,
    "mamba": mamba_config,
    **dict.fromkeys(FLA, fla_config),
    **dict.fromkeys(FAMILIES, transformers_config),
}
"""By `kind`."""

UNREAD = {"gated_deltanet": ".attn.D"}
"""End of the names of tensors that older versions wrote and nothing reads."""

MODEL_TYPES = ("gpt2", "mamba")
"""Values of `model_type` in the authors' configs, which may also have none; the second only Mamba's."""


def model_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint.

    Args:
        shapes: shapes of the checkpoint's tensors by key; they determine the MLP's width and biases, which
            the authors round and default in several ways. Without them ({}) the config's values are used.

    Raises:
        ValueError: an unsupported model, mixer or option, or a missing entry.
    """
    return READERS[kind(config)](config, shapes)


def kind(config: Config) -> str:
    """Return "based", "attn" or "mamba", after the authors' loaders, or the `model_type` of another model."""
    found = config.get("model_type")
    others = (*FLA, *FAMILIES)
    if found in others:
        return str(found)
    is_mamba = "ssm_cfg" in config or ("d_model" in config and "n_embd" not in config)
    fits = found is None or found in (MODEL_TYPES if is_mamba else MODEL_TYPES[:1])
    supported = ", ".join((*MODEL_TYPES, *others))
    expect(fits, "model_type", found, f"a supported model: {supported}, in their authors' form")
    classes = config.get("architectures")
    foreign = isinstance(classes, list) and any(str(name).startswith("GPT2") for name in classes)
    expect(not foreign, "architectures", classes, "the authors' GPT: that of `transformers` is not supported")
    if is_mamba:
        return "mamba"  # may also have GPT's entries, without effect
    if "n_embd" in config or "hidden_size" in config:
        return "based" if any(config.get(slot) for slot in SLOTS) else "attn"
    raise ValueError(
        f"entries {sorted(config)}: expected those of a based or attn model (n_embd, n_layer, ...)"
    )


def current_names(config: Config, tensors: Tensors) -> dict[str, Any]:
    """Rename a checkpoint's tensors to the names of `tables`. CheckpointError: a missing or repeated name."""
    family = str(config.get("model_type"))
    if family in FLA:
        read = {key: tensor for key, tensor in tensors.items() if not key.endswith(UNREAD.get(family, "\0"))}
        return renamed(read, "fla", NAMES["fla mamba2" if family == "mamba2" else "fla"])
    if family not in FAMILIES:
        return dict(tensors)
    known = FAMILIES[family]
    return known.weights(config, renamed(tensors, known.names, NAMES["transformers"]))


def current_key(family: str, key: str) -> str:
    """Return a tensor's name in `tables`, before weights are split or changed."""
    if family in FLA:
        return current_name(key, "fla")
    return current_name(key, FAMILIES[family].names) if family in FAMILIES else key
