"""Softmax attention within blocks of fixed length, Zoology's blocked window (Zoology, appendix).

    y_i = sum_{j<=i, j in i's block} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions

Blocks of `width` tokens are counted from the start of each segment and never straddle two segments.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Size
from based_jax.mixers.contract import Context, register
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.typing import Array, Float, State


class BlockedWindowState(NamedTuple):
    """The keys of the current block, and the start of the segment (not only of the block)."""

    cache: ops.KVCache
    """its stream treats every block as a segment"""
    stream: ops.Stream


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
        width = self.reach + 1
        # Identify each block by its first position and pass the blocks as segments.
        blocks = context.token_positions.start + context.token_positions.positions // width * width
        blocks = jnp.broadcast_to(blocks, x.shape[:2])
        within = dataclasses.replace(context, segment_ids=blocks)
        y, cache = self.attend(x, state and state.cache, within)
        return y, BlockedWindowState(cache, context.stream)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        cache = super().empty_state(batch_size, max_length, dtype)
        return BlockedWindowState(cache, ops.init_stream(batch_size))
