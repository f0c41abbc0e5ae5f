"""Softmax attention within blocks of fixed length, Zoology's blocked window (Zoology, appendix).

    y_i = sum_{j<=i, j in i's block} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions

Blocks of `width` tokens are counted from the start of each segment and never straddle two segments.
"""

import dataclasses

import jax.numpy as jnp

from based_jax.fields import Size
from based_jax.mixers.contract import Context, register
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.typing import Array, Float, State


@register("blocked_window")
class BlockedWindow(SoftmaxHeads):
    """Attention within blocks, with a ring buffer of one block.

    Attributes:
        width: tokens per block.
    """

    width: Size = 64

    @property
    def reach(self) -> int:
        """Return how many keys before its own a query may see: those of its block, `width` - 1."""
        return self.width - 1

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        index, start, _ = context.token_positions
        # Pass the blocks as segments, each with its first position as its id.
        blocks = jnp.broadcast_to(self._block(index, start), x.shape[:2])
        within = dataclasses.replace(context, segment_ids=blocks)
        if not context.has_state:
            return self.attend(x, None, within)
        last = self._block(state.stream.length - 1, state.stream.start)
        stream = dataclasses.replace(state.stream, start=last, segment=last)
        y, state = self.attend(x, dataclasses.replace(state, stream=stream), within)
        # Between calls the stream is that of the segments, as in other layers.
        return y, dataclasses.replace(state, stream=context.stream)

    def _block(self, index: Array, start: Array) -> Array:
        """Return the first position of each token's block."""
        return start + jnp.maximum(index - start, 0) // self.width * self.width
