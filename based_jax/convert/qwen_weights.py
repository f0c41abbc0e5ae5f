"""Split the packed tensors of Qwen3.5 and Qwen3-Next (`transformers`), and add 1 to the weights of norms.

Matrices of several maps are split by their rows, and convolutions by their channels:

    q_proj                 of each head queries, gates
    in_proj_qkv, conv1d    queries, keys, values
    in_proj_qkvz           of each key head its query, key, values, gates (Qwen3-Next)
    in_proj_ba             of each key head betas, steps of its values (Qwen3-Next)

Norms multiply by 1 + weight, which is computed in float32 as in their code, except those of Gated DeltaNets.
The vision tower (`visual`) and the layers that draft tokens (`mtp`) are left out.
"""

import logging
import re
from typing import Any

import numpy as np

from based_jax.convert.config_values import Config, size
from based_jax.convert.layouts import Tensors
from based_jax.convert.transformers_config import text_entries
from based_jax.convert.transformers_hybrids import linear_sizes

_LOG = logging.getLogger(__name__)
_OTHERS = re.compile(r"^model\.(visual|mtp)\.")
_ZERO_CENTRED = re.compile(r"(?<!\.o_)norm\.weight$")


def text_tensors(config: Config, tensors: Tensors) -> dict[str, Any]:
    """Return the tensors of the text model, given all under Llama's names; log how many others there are."""
    text = {key: tensor for key, tensor in tensors.items() if not _OTHERS.match(key)}
    if len(text) < len(tensors):
        others = "%d tensors of visual and mtp were left out: only the text model is read"
        _LOG.warning(others, len(tensors) - len(text))
    parts, found = _parts(text_entries(config)), dict[str, Any]()
    for key, tensor in text.items():
        parent, name, kind = ["", "", *key.rsplit(".", 2)][-3:]
        groups, sizes = parts.get(name, (1, {}))
        if not sizes or tensor.shape[:1] != (groups * sum(sizes.values()),):  # refused later, by name
            is_centred = _ZERO_CENTRED.search(key)
            found[key] = np.asarray(tensor, np.float32) + 1 if is_centred else tensor
            continue
        grouped = tensor.reshape(groups, -1, *tensor.shape[1:])
        split = np.split(grouped, np.cumsum([*sizes.values()])[:-1], axis=1)
        rows = (part.reshape(-1, *tensor.shape[1:]) for part in split)
        found |= zip((f"{parent}.{part}.{kind}" for part in sizes), rows, strict=True)
    return found


def _parts(config: Config) -> dict[str, tuple[int, dict[str, int]]]:
    """Return for each tensor that is split its number of groups of rows, and the rows of each part in one."""
    heads, width, value_heads, value_width = linear_sizes(config)
    query_heads, shared = config["num_attention_heads"], value_heads // heads
    query = size(config, "head_dim", config["hidden_size"] // query_heads)
    q, k, v = heads * width, heads * width, value_heads * value_width
    return {
        "q_proj": (query_heads, {"q_proj": query, "g_proj": query}),
        "in_proj_qkv": (1, {"q_proj": q, "k_proj": k, "v_proj": v}),
        "conv1d": (1, {"q_conv1d": q, "k_conv1d": k, "v_conv1d": v}),
        "in_proj_qkvz": (
            heads,
            {"q_proj": width, "k_proj": width, "v_proj": v // heads, "g_proj": v // heads},
        ),
        "in_proj_ba": (heads, {"b_proj": shared, "a_proj": shared}),
    }
