"""Which part of a language model a compiled instruction belongs to, from its scope."""

import re

from based_jax.models import ModelConfig

OTHER = "other"

SOFTMAX = ", softmax"
"""After the name of a mixer: its `ops.softmax_attention`."""

PRODUCTS = re.compile(
    r"/mixer\.mix/(?:[\w.]+/)*(?:(?:q|k|v|out|in_proj|\w*_proj|gate\w*)/(?:dot_general|transpose)"
    r"|row_products/pallas_call)$"
)
"""Products with the weights of a mixer, and of their gradients."""

PLACES = (
    ("cross_entropy", "cross-entropy"),
    ("optimizer", "optimizer"),
    ("final_norm", "norms"),
    ("unembed", "output embedding"),
    ("LanguageModel.hidden", "embedding"),
)
"""A word in the scope -> the part, of what is outside of the layers; the first that is found counts."""


def part_of(scope: str, config: ModelConfig) -> str:
    """The part's name: mixers are told apart by name, their products with weights from the rest."""
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
