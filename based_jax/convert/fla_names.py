"""Rename tensors of older fla checkpoints to fla's current names (flash-linear-attention).

Older names and layouts:

    model.embed_tokens, backbone.embedding      the token embedding, until March 2024 and in Mamba's own files
    attn.norm, mlp.norm                         the norms of a block, with `norm_first`, until February 2025
    mlp.gate_proj of 2 x hidden rows            gate and value as one matrix, until February 2025
    attn.D of Gated DeltaNet                    a parameter that is never read, until March 2025
"""

import re
from collections.abc import Mapping
from typing import Any

from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.validate import shown_name

_RENAMED = (
    (re.compile(r"^model\.embed_tokens\."), "model.embeddings."),
    (re.compile(r"^backbone\.embedding\."), "backbone.embeddings."),
    # The same norm, named after the kernel that computes it.
    (re.compile(r"\.attn\.g_norm_swish_gate\."), ".attn.g_norm."),
)
_NORM = re.compile(r"(\.layers\.\d+\.)(attn|mlp)\.norm\.weight$")
_GATE = re.compile(r"\.mlp\.gate_proj\.weight$")
_UNREAD = re.compile(r"\.attn\.D$")


def with_names_of_today(tensors: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Rename a checkpoint's tensors (from `read_state_dict`, without the prefix `model.`) to current names.

    Args:
        model_type: of the config.

    Raises:
        CheckpointError: two tensors with the same current name.
    """
    named: dict[str, Any] = {}
    for key, tensor in tensors.items():
        name = _today(key, tensors)
        if model_type == "gated_deltanet" and _UNREAD.search(name):
            continue
        if name in named:
            raise CheckpointError(f"{shown_name(name)} is there twice, the second time as {shown_name(key)}")
        named[name] = tensor
    for key in [key for key in named if _GATE.search(key)]:
        value = _GATE.sub(".mlp.up_proj.weight", key)
        if value not in named and named[key].ndim == 2 and len(named[key]) % 2 == 0:
            half = len(named[key]) // 2
            named[key], named[value] = named[key][:half], named[key][half:]
    return named


def _today(key: str, tensors: Mapping[str, Any]) -> str:
    name = key if key.startswith(("backbone.", "lm_head.", "model.")) else f"model.{key}"
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    moved = _NORM.sub(r"\1\2_norm.weight", name)
    return name if moved.removeprefix("model.") in tensors else moved
