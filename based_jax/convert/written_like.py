"""Write a model's parameters in the form of another checkpoint of it: the inverse of reading that form.

The checkpoint, such as the one that a fine-tuned model started from, gives config.json, the names, shapes
and dtypes of the tensors, and those that the model does not have (a vision tower, layers that draft tokens).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from based_jax.convert.configs import UNREAD, current_key
from based_jax.convert.layouts import Shapes, flatten
from based_jax.convert.options import Config
from based_jax.convert.state_dict import expect_keys, expect_weights
from based_jax.convert.transformers import FAMILIES, is_text
from based_jax.models import ModelConfig
from based_jax.validate import expect

_FREE = {
    *("embed_dropout", "residual_dropout", "drop_path", "init_std", "max_length", "dtype", "remat"),
    *("scan_layers", "freeze_embedding", "embed_init"),
}
"""Fields of a `ModelConfig` that do not change what its parameters compute."""


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
        tensors: the model's, under the names that the reader of this form gives to tensors.
        like: those of a checkpoint in the wanted form (`read_state_dict`).

    Raises:
        CheckpointError: the tensors do not have the names and shapes of `like`.
    """
    kind = str(config.get("model_type"))
    unread = UNREAD.get(kind, "\0")
    keys = [key for key in like if is_text(key) and not key.endswith(unread)]
    names = {current_key(kind, key): key for key in keys}
    shapes = {name: like[key].shape for name, key in names.items()}
    if kind in FAMILIES:
        tensors = FAMILIES[kind].stored(config, tensors, shapes)
    found = _with_gates_joined(tensors, shapes)
    found = {
        name: tensor for name, tensor in found.items() if name in shapes or not name.startswith("lm_head.")
    }
    expect_keys({name: tensor.shape for name, tensor in found.items()}, shapes)
    with np.errstate(over="ignore"):  # overflow is reported by name
        stored = {key: np.asarray(found[name]).astype(like[key].dtype) for name, key in names.items()}
    expect_weights(stored)
    return {_full_name(kind, key): stored.get(key, tensor) for key, tensor in like.items()}


def _with_gates_joined(tensors: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Stack the gate and the value of MLPs that store both in one matrix."""
    found = dict(tensors)
    for value in [name for name in tensors if ".mlp.up_proj." in name and name not in shapes]:
        gate = value.replace(".up_proj.", ".gate_proj.")
        found[gate] = np.concatenate([found[gate], found.pop(value)])
    return found


def _full_name(kind: str, key: str) -> str:
    """Return the name with its prefix, which `read_state_dict` removes and models without a head lack."""
    if key.startswith(("backbone.", "lm_head.", "mtp.", "transformer.")):
        return key
    return f"{'backbone' if kind == 'falcon_mamba' else 'model'}.{key}"
