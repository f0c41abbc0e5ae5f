"""Causal softmax attention over the whole past, as in Transformer++ (Based, Table 8).

y_i = sum_{j<=i} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions on part of each head
"""

from based_jax.mixers.contract import register
from based_jax.mixers.softmax_heads import SoftmaxAttention


@register("attention")
class Attention(SoftmaxAttention):
    """Full attention. Its state grows with the sequence: `init_state` needs `max_length`."""
