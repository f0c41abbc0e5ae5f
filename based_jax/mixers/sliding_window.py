"""Softmax attention in a tiny sliding window, Based's second mixer (Based, section 4.2).

    y_i = sum_{i-left <= j <= i} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions

`left` counts past keys: the paper's width w is left = w - 1, the torch code's window_size W is W // 2.
"""

from typing import Any

import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Count
from based_jax.mixers.contract import Context, project, register
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
        step_implementation: passed to `ops.window_step`, which decodes token by token, without sinks.
    """

    left: Count = 63
    sinks: Count = 0
    step_implementation: str | None = None

    def setup(self) -> None:
        super().setup()
        expect(not (self.sinks and self.dropout), "dropout", self.dropout, "0 with sinks")

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        if self.sinks:
            return self.attend(x, state, context, ops.sink_attention, sinks=self.sinks)
        if context.is_plain_step:
            return self._step(x, state, context)
        return super().mix(x, state, context)

    def _step(self, x: Float[Array, "B 1 D"], state: State, context: Context) -> tuple[Array, State]:
        q, k, v = project(x, self.q, self.k, self.v)
        options: dict[str, Any] = {"scale": self.factor, "implementation": self.step_implementation}
        if self.qk_norm or self.rotary_frequencies is not None:
            q, k = self.rotated(q, k, context)
        else:  # as part of the step
            options |= {"rotary_dim": self.rotary_dim or None, "rotary_base": self.rotary_base}
            options["rotary_interleaved"] = self.rotary_interleaved
        if context.has_positions:
            options["positions"] = jnp.broadcast_to(context.positions[:, 0], x.shape[:1])
        y, state = ops.window_step(q[:, 0], k[:, 0], v[:, 0], state, **options)
        return self.read_out(y[:, None], x), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        if not self.sinks:
            return super().empty_state(batch_size, max_length, dtype)
        _, kv_heads, width = self.layout
        return ops.init_sink_cache(batch_size, self.left, self.sinks, kv_heads, width, width, dtype)

    def state_size(self, length: int) -> int:
        """Return 2 d min(N, w) with w keys (Based, appendix E.2), counting the sinks."""
        _, kv_heads, width = self.layout
        return 2 * kv_heads * width * min(length, self.left + 1 + self.sinks)
