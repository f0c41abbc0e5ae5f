"""Rename and split the tensors of Qwen3.5 and Qwen3-Next (`transformers`), and add 1 to the norms' weights.

Matrices of several maps are split, by their rows:

    q_proj          of each head queries, gates -> q_proj, g_proj
    in_proj_qkv     -> in_proj_q, in_proj_k, in_proj_v
    in_proj_qkvz    of each key head its query, key, values, gates -> in_proj_q, ..., in_proj_z (Qwen3-Next)
    in_proj_ba      of each key head betas, steps of its values -> in_proj_b, in_proj_a (Qwen3-Next)

Norms multiply by 1 + weight, which is computed in float32 as in their code, except those of Gated DeltaNets.
The vision tower (`visual`) and the layers that draft tokens (`mtp`) are left out.
"""

import logging
import re
from typing import Any

import numpy as np

from based_jax.convert.config_values import Config, size
from based_jax.convert.layouts import Tensors
from based_jax.convert.older_names import transformers_names
from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.convert.transformers_config import linear_sizes, text_entries
from based_jax.validate import shown_name

_LOG = logging.getLogger(__name__)
_OTHER_PARTS = re.compile(r"^(visual|mtp)\.")
_ZERO_CENTRED = re.compile(r"(?<!linear_attn\.)norm\.weight$")


def qwen_names(config: Config, tensors: Tensors) -> dict[str, Any]:
    """Return the tensors of the text model under the names of `tables`; log how many others there are.

    Raises:
        CheckpointError: a tensor twice, with and without the prefix `language_model.`; a matrix without the
            rows of all heads; no token embedding.
    """
    text = {key: tensor for key, tensor in tensors.items() if not _OTHER_PARTS.match(key)}
    if len(text) < len(tensors):
        others = "%d tensors of visual and mtp were left out: only the text model is read"
        _LOG.warning(others, len(tensors) - len(text))
    splits, named = _splits(text_entries(config)), dict[str, Any]()
    for stored, tensor in text.items():
        key = stored.removeprefix("language_model.")
        if key != stored and key in text:
            raise CheckpointError(f"{shown_name(key)} is there twice, with and without language_model.")
        if _ZERO_CENTRED.search(key):
            tensor = np.asarray(tensor, np.float32) + 1
        module, _, kind = key.replace(".linear_attn.", ".self_attn.").rpartition(".")
        parent, _, name = module.rpartition(".")
        if name not in splits:
            named[f"{module}.{kind}"] = tensor
            continue
        groups, sizes = splits[name]
        rows = groups * sum(sizes.values())
        if tensor.shape[:1] != (rows,):
            raise CheckpointError(f"{shown_name(stored)} has shape {tensor.shape}: expected {rows} rows")
        grouped = tensor.reshape(groups, -1, *tensor.shape[1:])
        parts = np.split(grouped, np.cumsum([*sizes.values()])[:-1], axis=1)
        for part, values in zip(sizes, parts, strict=True):
            named[f"{parent}.{part}.{kind}"] = values.reshape(-1, *tensor.shape[1:])
    return transformers_names(named, "qwen hybrid")


def _splits(config: Config) -> dict[str, tuple[int, dict[str, int]]]:
    """Return for each matrix that is split its number of groups of rows, and the rows of each part in one."""
    heads, width, value_heads, value_width = linear_sizes(config)
    query_heads, shared = config["num_attention_heads"], value_heads // heads
    query = size(config, "head_dim", config["hidden_size"] // query_heads)
    keys, values = heads * width, value_heads * value_width
    q_k, of_head = {"in_proj_q": width, "in_proj_k": width}, values // heads
    return {
        "q_proj": (query_heads, {"q_proj": query, "g_proj": query}),
        "in_proj_qkv": (1, {"in_proj_q": keys, "in_proj_k": keys, "in_proj_v": values}),
        "in_proj_qkvz": (heads, {**q_k, "in_proj_v": of_head, "in_proj_z": of_head}),
        "in_proj_ba": (heads, {"in_proj_b": shared, "in_proj_a": shared}),
    }
