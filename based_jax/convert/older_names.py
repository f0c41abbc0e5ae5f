"""Rename tensors of older checkpoints, and of `transformers`, to the names of `tables`.

Older names and layouts:

    authors    norms ended their blocks: `transformer.ln_0` came before the first block, and the norm after
               each branch had the branch's number; now each norm comes before its branch, the last is `ln_f`
    fla        model.embed_tokens and backbone.embedding, the token embedding until March 2024 and in Mamba's
               files; attn.norm and mlp.norm, the norms of a block until February 2025; mlp.gate_proj of
               2 x hidden rows, gate and value as one matrix until then; attn.D of Gated DeltaNet, never read
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from based_jax.convert.tables import NAMES, RENAMED
from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.validate import shown_name

T = TypeVar("T")

_AUTHORS_NORM = re.compile(r"transformer\.layers\.(\d+)\.norm([12])\.(\w+)")
_FLA_RENAMED = (
    (re.compile(r"^model\.embed_tokens\."), "model.embeddings."),
    (re.compile(r"^backbone\.embedding\."), "backbone.embeddings."),
    # The same norm, named after the kernel that computes it.
    (re.compile(r"\.attn\.g_norm_swish_gate\."), ".attn.g_norm."),
)
_FLA_NORM = re.compile(r"(\.layers\.\d+\.)(attn|mlp)\.norm\.weight$")
_FLA_GATE = re.compile(r"\.mlp\.gate_proj\.weight$")
_FLA_UNREAD = re.compile(r"\.attn\.D$")


def with_norms_before(tensors: Mapping[str, T]) -> dict[str, T]:
    """Rename the norms of the authors' older checkpoints; current checkpoints are unchanged.

    ln_0 becomes norm1 of layer 0, norm1 of layer i its norm2, norm2 of layer i norm1 of layer i + 1, and the
    last norm2 ln_f (flash-attention's GPTLMHeadModel.load_state_dict).
    """
    if "transformer.ln_0.weight" not in tensors:
        return dict(tensors)
    layers = [int(found[1]) for found in map(_AUTHORS_NORM.fullmatch, tensors) if found]
    return {_authors_name(name, max(layers, default=0)): tensor for name, tensor in tensors.items()}


def _authors_name(name: str, last: int) -> str:
    found = _AUTHORS_NORM.fullmatch(name)
    if found is None:
        return name.replace("transformer.ln_0.", "transformer.layers.0.norm1.")
    layer, kind = int(found[1]), found[3]
    if found[2] == "1":
        return f"transformer.layers.{layer}.norm2.{kind}"
    return f"transformer.ln_f.{kind}" if layer == last else f"transformer.layers.{layer + 1}.norm1.{kind}"


def fla_names(tensors: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Rename the tensors of an fla checkpoint (from `read_state_dict`, without the prefix `model.`)."""
    is_unread = _FLA_UNREAD.search if model_type == "gated_deltanet" else lambda _: False
    read = {key: tensor for key, tensor in tensors.items() if not is_unread(key)}
    return _with_gates_apart(_renamed(read, lambda key: _fla_name(key, tensors)))


def _with_gates_apart(named: dict[str, Any]) -> dict[str, Any]:
    """Split the matrices of an MLP that hold its gate and its value."""
    for key in [key for key in named if _FLA_GATE.search(key)]:
        value = _FLA_GATE.sub(".mlp.up_proj.weight", key)
        if value not in named and named[key].ndim == 2 and len(named[key]) % 2 == 0:
            half = len(named[key]) // 2
            named[key], named[value] = named[key][:half], named[key][half:]
    return named


def _renamed(tensors: Mapping[str, T], rename: Callable[[str], str]) -> dict[str, T]:
    named: dict[str, T] = {}
    for key, tensor in tensors.items():
        name = rename(key)
        if name in named:
            raise CheckpointError(f"{shown_name(name)} is there twice, the second time as {shown_name(key)}")
        named[name] = tensor
    return named


def _fla_name(key: str, tensors: Mapping[str, Any]) -> str:
    name = key if key.startswith(("backbone.", "lm_head.", "model.")) else f"model.{key}"
    for pattern, replacement in _FLA_RENAMED:
        name = pattern.sub(replacement, name)
    moved = _FLA_NORM.sub(r"\1\2_norm.weight", name)
    return name if moved.removeprefix("model.") in tensors else moved


def transformers_names(tensors: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Rename the tensors of a `transformers` checkpoint to Llama's names, with the prefix `model.`."""
    names = NAMES["transformers"]

    def rename(key: str) -> str:
        key = key if key == names.head else f"model.{key}"
        return functools.reduce(lambda name, parts: name.replace(*parts), RENAMED.get(model_type, ()), key)

    named = _with_gates_apart(_renamed(tensors, rename))
    if names.embedding not in named:
        raise CheckpointError(f"1 missing: {names.embedding}")
    return named
