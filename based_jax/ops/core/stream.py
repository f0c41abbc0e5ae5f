"""Streams: for each row of a batch, the number of tokens so far and the start of its current segment.

Every mixer needs to know how many tokens came before a call, which of them belong to the current token's
document, and which tokens are padding. This module computes all three.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import lift, select
from based_jax.ops.core.op import body, expect_at_most, op
from based_jax.typing import Array, Bool, Int
from based_jax.validate import expect_array

T = TypeVar("T")
S = TypeVar("S")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stream:
    """Current position of each row; part of every mixer's state.

    Attributes:
        length: (B,) tokens consumed; padding is not counted.
        start: (B,) index of the first token of the current segment.
        segment: (B,) segment id of the last token.
        broken: (B,) whether a token of the current segment was NaN or infinite; see `nan_isolation`.
    """

    length: Int[Array, " B"]
    start: Int[Array, " B"]
    segment: Int[Array, " B"]
    broken: Bool[Array, " B"]


class TokenPositions(NamedTuple):
    """Positions of a call's tokens. Key j is visible to query i if start[i] <= index[j] <= index[i]."""

    index: Int[Array, "rows N"]  # pyright: ignore[reportIncompatibleMethodOverride]: the tuple's method goes
    """index of each token in its row, counted over calls; rows is 1 or B"""
    start: Int[Array, "rows size"]
    """index of the first token of each token's segment; rows is 1 or B, size is 1 or N"""
    mask: Bool[Array, "B N"] | None
    """True for real tokens; None if all are"""

    @property
    def positions(self) -> Int[Array, "rows N"]:
        """Positions within each segment, for rotary embeddings."""
        return self.index - self.start


def init_stream(batch_size: int) -> Stream:
    """Return the stream of rows without tokens."""
    length, start, segment = (jnp.zeros((batch_size,), jnp.int32) for _ in range(3))
    return Stream(length, start, segment, jnp.zeros((batch_size,), bool))


@op()
def advance(
    stream: Stream | None,
    batch_size: int,
    length: int,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> tuple[TokenPositions, Stream]:
    """Advance the stream by `length` tokens; return their positions and the new stream.

    None is the stream of rows without tokens. Masked tokens are not consumed: the next call continues after
    the last real token of each row. Without `segment_ids` a continued row stays in its segment.

    Raises:
        TypeError, ValueError: `segment_ids` is not (batch_size, length) integers, or `mask` not booleans with
            padding on the right.
    """
    if segment_ids is not None:
        expect_array("segment_ids", segment_ids, (batch_size, length), "integer")
        if segment_ids.dtype.itemsize > 4:
            what = "a 32-bit integer"
            expect_at_most(2**31 - 1, "largest of segment_ids", what, _largest, segment_ids)
    if mask is not None:
        expect_array("mask", mask, (batch_size, length), "bool")
        what = "0: padding is before or after them"
        expect_at_most(0, "rows of mask with padding between real tokens", what, _not_right_padded, mask)
    fresh = stream is None
    stream = init_stream(batch_size) if stream is None else stream
    expect_array("state length", stream.length, (batch_size,))

    offset = stream.length[:, None]
    index = jnp.arange(length, dtype=jnp.int32)[None]
    index = index if fresh else offset + index
    if segment_ids is None:
        start = jnp.zeros((1, 1), jnp.int32) if fresh else stream.start[:, None]
    else:
        segment_ids = segment_ids.astype(jnp.int32)
        before = segment_ids[:, :1] if fresh else stream.segment[:, None]
        begins = segment_ids != jnp.concatenate([before, segment_ids[:, :-1]], axis=1)
        if mask is not None:
            begins &= mask
        start = lax.cummax(jnp.where(begins, index, stream.start[:, None]), axis=1)

    every = jnp.full((batch_size,), length, jnp.int32)
    count = every if mask is None else mask.sum(axis=1, dtype=jnp.int32)

    def last_of(values: Array, otherwise: Array) -> Array:
        """Return the value at each row's last real token, or the old one if the row had none."""
        values = jnp.broadcast_to(values, (batch_size, length))
        if mask is None:
            return values[:, -1] if length else otherwise
        last = jnp.take_along_axis(values, jnp.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
        return jnp.where(count > 0, last, otherwise)

    now = last_of(start, stream.start)
    moved = Stream(
        length=stream.length + count,
        start=now,
        segment=stream.segment if segment_ids is None else last_of(segment_ids, stream.segment),
        broken=stream.broken & (now == stream.start),
    )
    return TokenPositions(index, start, mask), moved


def is_not_right_padded(mask: Any) -> Any:
    """Return which rows of a mask, (B, N), are not padded on the right only; see `padding`."""
    return (mask[:, 1:] & ~mask[:, :-1]).any(axis=1)


def _not_right_padded(numpy: Any, mask: Any) -> Any:
    return numpy.sum(is_not_right_padded(mask))


def _largest(numpy: Any, ids: Any) -> Any:
    return numpy.max(numpy.abs(ids))


def unpadded(mask: Bool[Array, "B N"] | None, arrays: T) -> T:
    """Set masked tokens of (B, N, ...) arrays in a pytree to zero: NaN would survive a product with 0.

    Raises:
        TypeError, ValueError: `mask` is not (B, N) booleans.
    """
    if mask is None:
        return arrays

    def real(x: Array) -> Array:
        expect_array("mask", mask, x.shape[:2], "bool")
        return jnp.where(lift(mask, x), x, 0)

    return jax.tree.map(real, arrays)


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
    def key_index(self) -> Int[Array, "rows N"]:
        """Index of each token; negative for masked ones."""
        index = self.tokens.index
        return index if self.mask is None else jnp.where(self.mask, index, -1)

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
        """Return the state before the call, of a recurrence that is affine in its state, and made by `run`.

        In a shard the writes of the shards before are added to it; see `sharding.affine_before`.
        """
        if not self.follows_shards:
            return state
        return sharding.affine_before(lambda state: run(state)[1], state, operator(), apply)


def continue_from(
    state: Any,
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
