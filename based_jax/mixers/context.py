"""What one call of a mixer knows of its tokens, beside their vectors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops.core.stream import Stream, TokenPositions, advance
from based_jax.typing import Array, Int, Mask, Positions, SegmentIds, State


@dataclass(frozen=True)
class Context:
    """The tokens of one call."""

    segment_ids: SegmentIds | None
    positions: Positions
    """for rotary embeddings: the caller's, else counted from the start of each segment; (1 or B, N)"""
    mask: Mask | None
    tokens: Int[Array, "B N"] | None
    """ids, where the caller has them"""
    token_positions: TokenPositions
    """where the tokens stand in their rows"""
    stream: Stream
    """how far each row has come after this call"""
    has_state: bool
    """whether the call continues from a state and returns one"""
    has_positions: bool
    """whether the positions are the caller's"""

    @classmethod
    def of_call(
        cls,
        x: Array,
        state: State | None,
        segment_ids: SegmentIds | None,
        positions: Positions | None,
        mask: Mask | None,
        tokens: Int[Array, "B N"] | None,
    ) -> "Context":
        """The context of a mixer's arguments.

        Raises:
            TypeError, ValueError: `segment_ids` or `mask` of another shape or dtype.
        """
        token_positions, stream = advance(find_stream(state), x.shape[0], x.shape[1], segment_ids, mask)
        return cls(
            segment_ids=None if segment_ids is None else jnp.asarray(segment_ids),
            positions=token_positions.positions if positions is None else positions,
            mask=None if mask is None else jnp.asarray(mask),
            tokens=tokens,
            token_positions=token_positions,
            stream=stream,
            has_state=state is not None,
            has_positions=positions is not None,
        )

    @property
    def is_plain_step(self) -> bool:
        """Whether this is one further token of each row, without padding, in the segment of the last one."""
        is_plain = self.has_state and self.segment_ids is self.mask is None
        return is_plain and self.token_positions.index.shape[1] == 1

    def run(
        self, op: Callable[..., Any], *args: Any, initial_state: State, **options: Any
    ) -> tuple[Any, State]:
        """Call an op on these tokens: it gets their segment ids, their mask and the state.

        Returns:
            The op's output, and its next state; None in a call without a state.
        """
        options |= {"segment_ids": self.segment_ids, "mask": self.mask}
        if not self.has_state:
            return op(*args, **options), None
        return op(*args, initial_state=initial_state, return_state=True, **options)


def find_stream(state: State | None) -> Stream | None:
    """How far the rows of a state have come: its `stream`, or the first one inside it."""
    if state is not None and hasattr(state, "stream"):
        return state.stream
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Stream))
    return next((node for node in nodes if isinstance(node, Stream)), None)
