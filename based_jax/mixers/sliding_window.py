"""Softmax attention in a tiny sliding window, Based's second mixer (Based, section 4.2).

    y_i = sum_{i-left <= j <= i} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions

`left` counts past keys: the paper's width w is left = w - 1, the torch code's window_size W is W // 2.
"""

from typing import Any

from based_jax import ops
from based_jax.fields import Count
from based_jax.mixers.contract import Context, register
from based_jax.mixers.softmax_heads import SoftmaxAttention
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


@register("sliding_window")
class SlidingWindow(SoftmaxAttention):
    """Sliding-window attention with a ring buffer of left + 1 keys.

    Attributes:
        left: past keys that a query sees besides its own; 63 is the paper's width of 64.
        sinks: first keys of each document that every query sees, too: the control for mixers that claim to
            recall more than a window of the same state (StreamingLLM, 2309.17453). Has no kernel.
    """

    left: Count = 63
    sinks: Count = 0

    def setup(self) -> None:
        super().setup()
        expect(not (self.sinks and self.dropout), "dropout", self.dropout, "0 with sinks")

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        if not self.sinks:
            return super().mix(x, state, context)
        return self.attend(x, state, context, ops.sink_attention, sinks=self.sinks)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        if not self.sinks:
            return super().empty_state(batch_size, max_length, dtype)
        _, kv_heads, width = self.layout
        return ops.init_sink_cache(batch_size, self.left, self.sinks, kv_heads, width, width, dtype)

    def state_size(self, length: int) -> int:
        """Return 2 d min(N, w) with w keys (Based, appendix E.2), counting the sinks."""
        _, kv_heads, width = self.layout
        return 2 * kv_heads * width * min(length, self.left + 1 + self.sinks)
