"""Where each row of a batch stands: tokens seen so far, and where its current segment began.

Every mixer meets the same three questions: how many tokens came before this call, which of them belong
to the document of the token at hand, and which tokens are padding. They are answered once, here.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops import context_parallel
from based_jax.ops.eager import compiled
from based_jax.ops.value_checks import expect_at_most
from based_jax.typing import Array, Bool, Int
from based_jax.validate import expect_array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stream:
    """How far each row has come. Part of every mixer's state."""

    length: Int[Array, " B"]
    """tokens consumed (padding not counted)"""
    start: Int[Array, " B"]
    """index of the first token of the current segment"""
    segment: Int[Array, " B"]
    """segment id of the last token"""
    broken: Bool[Array, " B"]
    """whether a token of the current segment was NaN or infinite; see `not_numbers`"""


def stays(before: Stream, after: Stream) -> Bool[Array, " B"]:
    """Rows whose segment in front of a call is also the one behind it."""
    return before.start == after.start


class Places(NamedTuple):
    """Where the tokens of one call stand. Key j is visible to query i if start[i] <= index[j] <= index[i]."""

    index: Int[Array, "rows N"]
    """running number of each token in its row, counted over calls; rows is 1 or B"""
    start: Int[Array, "rows size"]
    """index where each token's segment began; rows is 1 or B, size is 1 or N"""
    mask: Bool[Array, "B N"] | None
    """True for real tokens; None if all are"""

    @property
    def positions(self) -> Int[Array, "rows N"]:
        """Positions within each segment, for rotary embeddings."""
        return self.index - self.start


def init_stream(batch_size: int) -> Stream:
    """The stream of rows that have not seen a token."""
    length, start, segment = (jnp.zeros((batch_size,), jnp.int32) for _ in range(3))
    return Stream(length, start, segment, jnp.zeros((batch_size,), bool))


@compiled
def advance(
    stream: Stream | None,
    batch_size: int,
    length: int,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> tuple[Places, Stream]:
    """Place `length` further tokens behind `stream` (None: behind nothing) and move it past them.

    Where sequences are split over devices, None is behind the parts of the devices before this one. With
    right padding the masked tokens are not consumed: the next call continues behind the last real token
    of each row. Without `segment_ids` a continued row stays in its segment.

    Raises:
        TypeError, ValueError: `segment_ids` is not (batch_size, length) integers, or `mask` not booleans.
    """
    if segment_ids is not None:
        expect_array("segment_ids", segment_ids, (batch_size, length), "integer")
        if segment_ids.dtype.itemsize > 4:
            what = "a number of 32 bits"
            expect_at_most(2**31 - 1, "largest of segment_ids", what, _largest, segment_ids)
    if mask is not None:
        expect_array("mask", mask, (batch_size, length), "bool")
        what = "0: padding is on the right"
        expect_at_most(0, "rows of mask with real tokens behind padding", what, _behind_padding, mask)
    if stream is None:
        stream = stream_of(None, batch_size, length, segment_ids, mask)
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
        """The value at each row's last real token, or the old one if the row had none."""
        values = jnp.broadcast_to(values, (batch_size, length))
        last = jnp.take_along_axis(values, jnp.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
        return jnp.where(count > 0, last, otherwise)

    now = last_of(start, stream.start)
    moved = Stream(
        length=stream.length + count,
        start=now,
        segment=stream.segment if segment_ids is None else last_of(segment_ids, stream.segment),
        broken=stream.broken & (now == stream.start),
    )
    return Places(index, start, mask), moved


def behind_padding(mask: Any) -> Any:
    """Rows of a mask, (B, N), that are not padded on the right, which nothing here can compute."""
    return (mask[:, 1:] & ~mask[:, :-1]).any(axis=1)


def _behind_padding(numpy: Any, mask: Any) -> Any:
    return numpy.sum(behind_padding(mask))


def _largest(numpy: Any, ids: Any) -> Any:
    return numpy.max(numpy.abs(ids))


def unpadded(mask: Bool[Array, "B N"] | None, arrays: Any) -> Any:
    """A pytree of (B, N, ...) arrays with zeros at masked tokens: NaN there would survive a product with 0.

    Raises:
        TypeError, ValueError: `mask` is not (B, N) booleans.
    """
    if mask is None:
        return arrays

    def real(x: Array) -> Array:
        expect_array("mask", mask, x.shape[:2], "bool")
        return jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, 0)

    return jax.tree.map(real, arrays)


def stream_of(
    state: Any,
    batch_size: int,
    length: int,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Stream | None:
    """The stream that a call continues: the state's, that of the devices before, or None for none."""
    if state is not None:
        return state.stream
    return stream_before(batch_size, length, segment_ids, mask) if context_parallel.is_split() else None


def stream_before(
    batch_size: int,
    length: int,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Stream:
    """Where rows stand in front of this device's part of them; see `context_parallel`."""
    if segment_ids is None and mask is None:
        counted = jnp.full((batch_size,), context_parallel.part() * length, jnp.int32)
        return dataclasses.replace(init_stream(batch_size), length=counted)
    zero = jnp.zeros((batch_size,), jnp.int32)
    first = zero if segment_ids is None else segment_ids[:, 0].astype(jnp.int32)
    fresh = dataclasses.replace(init_stream(batch_size), segment=first)
    _, own = advance(fresh, batch_size, length, segment_ids, mask)

    def combine(earlier: tuple[Stream, Array], later: tuple[Stream, Array]) -> tuple[Stream, Array]:
        """Each with the segment of its first token; `start` is 0 if that is also the last one's."""
        (a, first), (b, second) = earlier, later
        begins = jnp.where(a.segment == second, a.start, a.length)
        start = jnp.where(b.start > 0, a.length + b.start, begins)
        joined = Stream(a.length + b.length, start, b.segment, b.broken)
        joined = jax.tree.map(lambda both, only: jnp.where(b.length > 0, both, only), joined, a)
        return jax.tree.map(
            lambda both, only: jnp.where(a.length > 0, both, only), (joined, first), (b, second)
        )

    nothing = (init_stream(batch_size), zero)
    return context_parallel.scan_before(combine, (own, first), nothing)[0]
