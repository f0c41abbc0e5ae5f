"""Softmax attention in a tiny sliding window, Based's second mixer (Based, section 4.2).

    y_i = sum_{i-left <= j <= i} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions

`left` counts past keys: the paper's width w is left = w - 1, the torch code's window_size W is W // 2.
"""

from based_jax.fields import Count
from based_jax.mixers.registry import register
from based_jax.mixers.softmax_heads import SoftmaxAttention


@register("sliding_window")
class SlidingWindow(SoftmaxAttention):
    """Sliding-window attention with a ring buffer of left + 1 keys.

    Attributes:
        left: past keys that a query sees besides its own; 63 is the paper's width of 64.
    """

    left: Count = 63
