"""Map a compiled instruction to its part of a language model, by its scope."""

import re

from based_jax.models import ModelConfig

OTHER = "other"

SOFTMAX = ", softmax"
"""Suffix of a mixer's name for its `ops.softmax_attention`."""

PRODUCTS = re.compile(
    r"/mixer\.mix/(?:[\w.]+/)*(?:(?:q|k|v|out|in_proj|\w*_proj|gate\w*)/(?:dot_general|transpose)"
    r"|row_products/pallas_call)$"
)
"""Scopes of products with the weights of a mixer, and of their gradients."""

PLACES = (
    ("cross_entropy", "cross-entropy"),
    ("optimizer", "optimizer"),
    ("final_norm", "norms"),
    ("unembed", "output embedding"),
    ("LanguageModel.hidden", "embedding"),
)
"""A word in the scope -> the part, for scopes outside of the layers; the first match counts."""


def part_of(scope: str, config: ModelConfig) -> str:
    """Return the part's name: each mixer by its name, with its weight products separate from the rest."""
    if layer := re.search(r"\blayers_(\d+)/(mixer|mlp)\b", scope):
        if layer[2] == "mlp":
            return "MLP"
        mixer = config.layer(int(layer[1])).mixer
        if PRODUCTS.search(scope):
            return f"{mixer}, products with weights"
        return mixer + SOFTMAX * ("/softmax_attention/" in scope)
    if re.search(r"\blayers_\d+\b", scope):
        return "norms"  # with the residual sum
    return next((part for word, part in PLACES if word in scope), OTHER)
