"""Softmax attention within blocks of fixed length, Zoology's blocked window (Zoology, appendix).

    y_i = sum_{j<=i, j in i's block} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions

Blocks of `width` tokens are counted from the start of each segment and never straddle two segments.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Size
from based_jax.mixers.contract import Card
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockedWindowState:
    """The keys of the current block, and where the segment (not only the block) began."""

    cache: ops.KVCache
    """its stream counts every block as a segment"""
    stream: ops.Stream


class BlockedWindow(SoftmaxHeads):
    """Attention within blocks, with a ring buffer of one block.

    Attributes:
        width: tokens per block.
    """

    card: ClassVar[Card] = Card(
        equation="softmax over the keys of the token's block of w",
        training="N w D",
        state="2 D min(N, w)",
        decoding="read 2 D w",
        source="Zoology, appendix",
        parity=(),
    )

    width: Size = 64

    @property
    def reach(self) -> int:
        expect(self.width >= 1, "width", self.width, "at least 1 token")
        return self.width - 1

    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        x = self.check_input(x)
        width = self.reach + 1
        before, cache = (None, None) if state is None else (state.stream, state.cache)
        batch, length, _ = x.shape
        places, stream = ops.advance(before, batch, length, segment_ids, mask)
        # Where its block begins names a token's block: the blocks become the segments.
        blocks = places.start + places.positions // width * width
        blocks = jnp.broadcast_to(blocks, (batch, length))
        y, cache = super().__call__(x, cache, segment_ids=blocks, positions=positions, mask=mask)
        return y, None if cache is None else BlockedWindowState(cache, stream)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        cache = self.cache(batch_size, self.reach + 1, dtype)
        return BlockedWindowState(cache, ops.init_stream(batch_size))

    def state_size(self, length: int) -> int:
        """2 d min(N, w), as a sliding window of w keys."""
        return self.cached_floats(min(length, self.reach + 1))
