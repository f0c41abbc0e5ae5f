"""Softmax attention in a tiny sliding window, Based's second mixer (Based, section 4.2).

    y_i = sum_{i-left <= j <= i} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions

`left` counts past keys: the paper's width w is left = w - 1, the torch code's window_size W is W // 2.
"""

from typing import Any, ClassVar

from based_jax.fields import Count
from based_jax.mixers.contract import Card
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.typing import State
from based_jax.validate import expect


class SlidingWindow(SoftmaxHeads):
    """Sliding-window attention with a ring buffer of left + 1 keys.

    Attributes:
        left: past keys that a query sees beside its own; 63 is the paper's width of 64.
    """

    card: ClassVar[Card] = Card(
        equation="softmax over the last w keys, rotary positions",
        training="N w D",
        state="2 D min(N, w)",
        decoding="read 2 D w",
        source="Based, section 4.2",
        parity=(
            "based/sliding_attention",
            "zoology/sliding_attn",
        ),
    )

    left: Count = 63

    @property
    def reach(self) -> int:
        expect(self.left >= 0, "left", self.left, "at least 0")
        return self.left

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        return self.cache(batch_size, self.reach + 1, dtype)

    def state_size(self, length: int) -> int:
        """2 d min(N, w) with w = left + 1 keys (Based, appendix E.2)."""
        return self.cached_floats(min(length, self.reach + 1))
