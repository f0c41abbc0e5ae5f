"""Glossary of the dimension letters used in signatures and comments.

=====  ==========================================================================
letter meaning
=====  ==========================================================================
B      batch (rows)
N      length (tokens per row)
M      number of keys, if it differs from the number of queries N
D      model width (the papers' d_model)
H      heads
G      key/value heads (G divides H; G == H unless grouped-query attention is used)
K      query/key width per head (the papers' d', `feature_dim`)
V      value width per head (the papers' d)
F      feature width after the feature map (153 for the symmetric Taylor map of K = 16)
W      slots of a key/value cache (left + 1 for a sliding window)
C      tokens per chunk of a chunked scan
E      inner channels of a convolution mixer
T      taps of a short convolution
=====  ==========================================================================

Arrays are (batch, length, heads, dim), as in `jax.nn.dot_product_attention`.
"""

from typing import Any, TypeAlias

from jaxtyping import Array, Bool, Float, Int

__all__ = ["Array", "Bool", "Float", "Int", "Mask", "Params", "Positions", "Scale", "SegmentIds", "State"]

SegmentIds: TypeAlias = Int[Array, "B N"]
"""The document of each token; a change of id between neighbours starts a new document."""

Mask: TypeAlias = Bool[Array, "B N"]
"""True for real tokens, which are one run in each row: padding may be before, after or around it."""

Positions: TypeAlias = Int[Array, "B N"]
"""Positions for rotary embeddings; by default they count from the start of each segment."""

Scale: TypeAlias = float | Float[Array, ""]
"""Factor of the scores: a number, or an array of one, which may be learned."""

State: TypeAlias = Any
"""A pytree of arrays, passed in and returned, never mutated."""

Params: TypeAlias = Any
"""The variables of a Flax module, ``{"params": ...}``."""
