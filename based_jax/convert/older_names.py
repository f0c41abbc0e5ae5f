"""Rename tensors of older checkpoints, and of `transformers`, to the names of `tables`.

Older names and layouts:

    authors    norms ended their blocks: `transformer.ln_0` came before the first block, and the norm after
               each branch had the branch's number; now each norm comes before its branch, the last is `ln_f`
    fla        model.embed_tokens and backbone.embedding, the token embedding until March 2024 and in Mamba's
               files; attn.norm and mlp.norm, the norms of a block until February 2025; mlp.gate_proj of
               2 x hidden rows, gate and value as one matrix until then; attn.D of Gated DeltaNet, never read
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from based_jax.convert.tables import AUTHORS, RENAMED, Names
from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.validate import shown_name

T = TypeVar("T")

_GATE = re.compile(r"\.mlp\.gate_proj\.weight$")


def with_norms_before(tensors: Mapping[str, T]) -> dict[str, T]:
    """Rename the norms of the authors' older checkpoints; current checkpoints are unchanged.

    ln_0 becomes norm1 of layer 0, norm1 of layer i its norm2, norm2 of layer i norm1 of layer i + 1, and the
    last norm2 ln_f (flash-attention's GPTLMHeadModel.load_state_dict).
    """
    if "transformer.ln_0.weight" not in tensors:
        return dict(tensors)
    layers, norms = len(AUTHORS.layers(tensors)), {"transformer.ln_0": f"{AUTHORS.layer(0)}.norm1"}
    for index in range(layers):
        norms[f"{AUTHORS.layer(index)}.norm1"] = f"{AUTHORS.layer(index)}.norm2"
        norms[f"{AUTHORS.layer(index)}.norm2"] = f"{AUTHORS.layer(index + 1)}.norm1"
    norms[f"{AUTHORS.layer(layers - 1)}.norm2"] = "transformer.ln_f"
    split = {name: name.rpartition(".") for name in tensors}
    return {f"{norms.get(stem, stem)}{dot}{kind}": tensors[name] for name, (stem, dot, kind) in split.items()}


def current_names(tensors: Mapping[str, Any], model_type: str, names: Names) -> dict[str, Any]:
    """Rename the tensors of a checkpoint (from `read_state_dict`, without the prefix `model.`).

    Args:
        model_type: key of `tables.RENAMED`.
        names: of the code base whose names are current.
    """
    named: dict[str, Any] = {}
    for key, tensor in tensors.items():
        name = current_name(key, model_type)
        if name in named:
            raise CheckpointError(f"{shown_name(name)} is there twice, the second time as {shown_name(key)}")
        named[name] = tensor
    if names.embedding not in named:
        raise CheckpointError(f"1 missing: {names.embedding}")
    return _with_gates_apart(named)


def current_name(key: str, model_type: str) -> str:
    """Return the current name of a tensor."""
    name = key if key.startswith(("backbone.", "lm_head.", "model.")) else f"model.{key}"
    for old, new in RENAMED.get(model_type, ()):
        name = name.replace(old, new)
    return name


def _with_gates_apart(named: dict[str, Any]) -> dict[str, Any]:
    """Split the matrices of an MLP that hold its gate and its value."""
    for key in [key for key in named if _GATE.search(key)]:
        value = _GATE.sub(".mlp.up_proj.weight", key)
        if value not in named and named[key].ndim == 2 and len(named[key]) % 2 == 0:
            half = len(named[key]) // 2
            named[key], named[value] = named[key][:half], named[key][half:]
    return named
