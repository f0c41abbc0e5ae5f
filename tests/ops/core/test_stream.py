"""Streams: where the tokens of a call stand, over several calls, per row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import array
from tests.ops import draw

BATCH = 3


@functools.partial(jax.jit, static_argnames="length")
def advance(stream, segment_ids, mask, *, length: int):
    token_positions, stream = ops.advance(stream, BATCH, length, segment_ids, mask)
    everywhere = [
        jnp.broadcast_to(x, (BATCH, length))
        for x in (token_positions.index, token_positions.start, token_positions.positions)
    ]
    return everywhere, stream


class Row:
    """One row, token by token."""

    def __init__(self):
        self.length = self.start = self.segment = 0

    def token(self, segment: int | None) -> tuple[int, int, int]:
        """index, start and position of the next token"""
        if segment is not None:
            if segment != self.segment and self.length:
                self.start = self.length
            self.segment = segment
        index = self.length
        self.length += 1
        return index, self.start, index - self.start


@st.composite
def calls(draw_):
    """A few calls of 1 or 5 tokens, with or without ids and padding."""
    drawn = []
    for _ in range(draw_(st.integers(1, 4))):
        length = draw_(st.sampled_from([1, 5]))
        bare = draw_(st.booleans())  # ids without a mask, and a mask without ids, take the same ways
        ids = None if bare else draw_(draw.segment_ids(BATCH, length))
        counts = None if bare else draw_(draw.counts(BATCH, length))
        drawn.append((length, ids, counts))
    return drawn


@given(calls(), st.booleans())
def test_advance_counts_like_a_row_at_a_time(drawn, fresh):
    """Over any sequence of calls, from None or from an empty stream."""
    rows = [Row() for _ in range(BATCH)]
    stream = None if fresh else ops.init_stream(BATCH)
    for length, ids, counts in drawn:
        mask = None if counts is None else array(draw.mask(counts, length))
        token_positions, stream = advance(stream, None if ids is None else array(ids), mask, length=length)
        for b, row in enumerate(rows):
            for t in range(length if counts is None else counts[b]):
                expected = row.token(None if ids is None else ids[b, t])
                assert tuple(int(x[b, t]) for x in token_positions) == expected
        assert stream.length.tolist() == [row.length for row in rows]
        assert stream.start.tolist() == [row.start for row in rows]
        assert stream.segment.tolist() == [row.segment for row in rows]
        assert [x.dtype for x in jax.tree.leaves(stream)] == [jnp.int32] * 3 + [jnp.bool_]


def test_a_fresh_call_without_ids_stays_small():
    """No (B, N) arrays are made where one row says it all: masks built from them stay small too."""
    token_positions, stream = ops.advance(None, 4, 6)
    assert token_positions.index.shape == (1, 6)
    assert token_positions.start.shape == (1, 1)
    assert token_positions.mask is None
    assert np.array_equal(token_positions.positions, np.arange(6)[None])
    assert stream.length.tolist() == [6] * 4


def test_ids_of_other_integer_types(unchecked):
    for dtype in (jnp.int8, jnp.uint8, jnp.int16):
        ids = array([[1, 1, 2]], dtype)
        token_positions, stream = ops.advance(None, 1, 3, ids)
        assert token_positions.start.tolist() == [[0, 0, 2]]
        assert stream.segment.dtype == jnp.int32
