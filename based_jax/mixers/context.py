"""Everything that one call of a mixer knows about its tokens except their vectors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from based_jax.ops.core.stream import Stream, TokenPositions
from based_jax.typing import Array, Int, Mask, Positions, SegmentIds, State


@dataclass(frozen=True)
class Context:
    """The tokens of one call.

    Attributes:
        segment_ids: document of each token, (B, N), as the caller passed them, else None.
        positions: positions for rotary embeddings, (1 or B, N): those that the caller passed, else
            `token_positions.positions`.
        mask: True for real tokens and False for padding, (B, N), as the caller passed it, else None.
        tokens: token ids, (B, N), as the caller passed them, else None.
        token_positions: index of each token in its row, counted over calls, and of the first token of its
            document; their difference is `token_positions.positions`, (1 or B, N).
        stream: position of each row after this call, (B,), which the next state contains.
        has_state: whether the call continues from a state and returns one.
        has_positions: whether the caller passed `positions`.
        apart: whether `mix` may return (y, bias) in place of y, without the bias of the output projection.
    """

    token_positions: TokenPositions
    stream: Stream
    segment_ids: SegmentIds | None
    positions: Positions
    mask: Mask | None
    tokens: Int[Array, "B N"] | None
    has_state: bool
    has_positions: bool
    apart: bool = False

    @property
    def is_plain_step(self) -> bool:
        """Whether the call is one more token per row, without padding, in the segment of the last token."""
        is_plain = self.has_state and self.segment_ids is self.mask is None
        return is_plain and self.token_positions.index.shape[1] == 1

    @property
    def is_whole(self) -> bool:
        """Whether the call has no state, and each row is one document without padding."""
        return not self.has_state and self.segment_ids is self.mask is None

    def run(
        self, op: Callable[..., Any], *args: Any, initial_state: State, **options: Any
    ) -> tuple[Any, State]:
        """Call an op with the segment ids, mask and state of these tokens.

        Returns:
            The op's output, and its next state (None in a call without a state).
        """
        options |= {"segment_ids": self.segment_ids, "mask": self.mask}
        if not self.has_state:
            return op(*args, **options), None
        return op(*args, initial_state=initial_state, return_state=True, **options)


def find_stream(state: State | None) -> Stream | None:
    """Return the stream of a state (current position of each row): its `stream`, or the first inside it."""
    if state is not None and hasattr(state, "stream"):
        return state.stream
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Stream))
    return next((node for node in nodes if isinstance(node, Stream)), None)
