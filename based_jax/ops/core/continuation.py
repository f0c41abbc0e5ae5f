"""Continuation of sequences: a call's tokens, the streams before and after it, the state before it.

The arguments that ops on sequences share are explained in `help(based_jax.ops)`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import jax.numpy as jnp

from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import lift, select
from based_jax.ops.core.op import body
from based_jax.ops.core.stream import Stream, TokenPositions, advance, init_stream, unpadded
from based_jax.typing import Array, Bool, Int

T = TypeVar("T")
S = TypeVar("S")


class Stateful(Protocol):
    """A state of any op."""

    @property
    def stream(self) -> Stream:
        """Current position of each row."""
        ...


def outputs_and_state(results: Any, return_state: bool) -> tuple[Any, Any]:
    """Split a call's results into its outputs and the state or None."""
    return results if return_state else (results, None)


@dataclass(frozen=True)
class Continuation:
    """A call and its visibility of the state that it continues. Made by `continue_from`."""

    tokens: TokenPositions
    before: Stream | None
    """None before the first token of every row"""
    after: Stream
    start: Int[Array, "rows N"] | None
    """start of each token's segment, relative to this call (negative: before it); None if all tokens are in
    the first token's segment, see `chunks.scan_chunks`"""
    follows_shards: bool
    """whether the call computes a shard of each sequence, without an initial state"""

    @property
    def mask(self) -> Bool[Array, "B N"] | None:
        """True for real tokens; None if all are."""
        return self.tokens.mask

    @property
    def stays(self) -> Bool[Array, " B"]:
        """Rows that stay in one segment throughout the call."""
        return self.after.start == (0 if self.before is None else self.before.start)

    @property
    def count(self) -> Int[Array, " B"]:
        """Real tokens of each row in this call."""
        return self.after.length - (0 if self.before is None else self.before.length)

    def kept(self, x: Array) -> Array:
        """Return x, (B, ...), with zeros in the rows that leave their first segment in this call."""
        return jnp.where(lift(self.stays, x), x, 0)

    def unpadded(self, arrays: T) -> T:
        """Return a pytree of (B, N, ...) arrays with zeros at masked tokens; see `stream.unpadded`."""
        return unpadded(self.tokens.mask, arrays)

    def prefix(
        self,
        run: Callable[[S], tuple[Any, S]],
        state: S,
        operator: Callable[[], Any],
        apply: Callable[[Any, Any], Any],
    ) -> S:
        """Return the state before the call, of a recurrence that is affine in its state.

        Args:
            run: maps an initial state to outputs and the final state.
            state: the caller's, or empty; in a shard the writes of the shards before are added.
            operator: makes the linear map of `run` from initial to final states; called in shards only.
            apply: applies an operator to a state, or to an earlier operator.
        """
        if not self.follows_shards:
            return state
        return sharding.affine_before(lambda state: run(state)[1], state, operator(), apply)


def continue_from(
    state: Stateful | None,
    batch_size: int,
    length: int,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Continuation:
    """Continue with `length` tokens after a state, or without one after earlier shards or from the start.

    Raises:
        TypeError, ValueError: `segment_ids` is not (batch_size, length) integers, or `mask` not booleans.
    """
    follows_shards = state is None and sharding.is_sharded()
    before = None if state is None else state.stream
    if follows_shards:
        before = _stream_before_shard(batch_size, length, segment_ids, mask)
    tokens, after = body(advance)(before, batch_size, length, segment_ids, mask)
    start = None
    if segment_ids is not None:
        start = tokens.start - (0 if before is None else before.length[:, None])
    return Continuation(tokens, before, after, start, follows_shards)


def _stream_before_shard(
    batch_size: int,
    length: int,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Stream:
    """Return the stream before this device's shard of the rows; see `sharding`."""
    if segment_ids is None and mask is None:
        counted = jnp.full((batch_size,), sharding.shard() * length, jnp.int32)
        return replace(init_stream(batch_size), length=counted)
    zero = jnp.zeros((batch_size,), jnp.int32)
    first = zero if segment_ids is None else segment_ids[:, 0].astype(jnp.int32)
    fresh = replace(init_stream(batch_size), segment=first)
    _, own = body(advance)(fresh, batch_size, length, segment_ids, mask)

    def combine(earlier: tuple[Stream, Array], later: tuple[Stream, Array]) -> tuple[Stream, Array]:
        """Combine streams with their first tokens' segments; `start` is 0 if the last token has the same."""
        (a, first), (b, second) = earlier, later
        begins = jnp.where(a.segment == second, a.start, a.length)
        start = jnp.where(b.start > 0, a.length + b.start, begins)
        joined = Stream(a.length + b.length, start, b.segment, b.broken)
        joined = select(b.length > 0, joined, a)
        return select(a.length > 0, (joined, first), (b, second))

    nothing = (init_stream(batch_size), zero)
    return sharding.scan_before(combine, (own, first), nothing)[0]
