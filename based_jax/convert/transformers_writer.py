"""Write a model's parameters into the form of a checkpoint of `transformers`: the inverse of reading it.

A checkpoint in that form, such as the one that a fine-tuned model started from, gives config.json, the names,
shapes and dtypes of the tensors, and the tensors that the model does not have (the vision tower, layers that
draft tokens).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from based_jax.convert.layouts import flatten
from based_jax.convert.options import Config
from based_jax.convert.state_dict import current_name, expect_keys, expect_weights
from based_jax.convert.transformers import FAMILIES, is_text
from based_jax.models import ModelConfig
from based_jax.validate import expect

_FREE = {
    *("embed_dropout", "residual_dropout", "drop_path", "init_std", "max_length", "dtype", "remat"),
    *("scan_layers", "freeze_embedding", "embed_init"),
}
"""Fields of a `ModelConfig` that do not change what its parameters compute."""


def expect_form(config: Config, directory: Path) -> None:
    """Check that a checkpoint has this form. ValueError: it has another."""
    found = config.get("model_type")
    expected = f"a checkpoint of transformers with a model_type of {', '.join(FAMILIES)}, not {found!r}"
    expect(found in FAMILIES, "like", str(directory), expected)


def expect_same(model: ModelConfig, like: ModelConfig) -> None:
    """Check that two models compute the same. ValueError: the fields that differ."""
    ours, theirs = (flatten(config.to_dict()) for config in (model, like))
    names = [name for name in ours | theirs if name.partition("/")[0] not in _FREE]
    different = [name for name in names if ours.get(name) != theirs.get(name)]
    values = (f"{name} {ours.get(name)!r} (there {theirs.get(name)!r})" for name in different)
    expect(not different, "like", ", ".join(values), "a checkpoint of the same model")


def stored_tensors(
    config: Config, tensors: Mapping[str, np.ndarray], like: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the tensors of a checkpoint.

    Args:
        config: its config.json.
        tensors: the model's, under Llama's names.
        like: those of a checkpoint in the wanted form (`read_state_dict`).

    Raises:
        CheckpointError: the tensors do not have the names and shapes of `like`.
    """
    family = FAMILIES[config["model_type"]]
    names = {current_name(key, family.names): key for key in like if is_text(key)}
    shapes = {name: like[key].shape for name, key in names.items()}
    text = _with_gates_joined(family.stored(config, tensors, shapes), shapes)
    text = {
        name: tensor for name, tensor in text.items() if name in shapes or not name.startswith("lm_head.")
    }
    expect_keys({name: tensor.shape for name, tensor in text.items()}, shapes)
    with np.errstate(over="ignore"):  # overflow is reported by name
        stored = {key: np.asarray(text[name]).astype(like[key].dtype) for name, key in names.items()}
    expect_weights(stored)
    return {_full_name(key): stored.get(key, tensor) for key, tensor in like.items()}


def _with_gates_joined(tensors: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Stack the gate and the value of MLPs that store both in one matrix."""
    found = dict(tensors)
    for value in [name for name in tensors if ".mlp.up_proj." in name and name not in shapes]:
        gate = value.replace(".up_proj.", ".gate_proj.")
        found[gate] = np.concatenate([found[gate], found.pop(value)])
    return found


def _full_name(key: str) -> str:
    """Return the name with the prefix that `read_state_dict` removes."""
    return key if key.startswith(("backbone.", "lm_head.")) else f"model.{key}"
