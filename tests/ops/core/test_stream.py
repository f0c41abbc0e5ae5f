"""Streams without the laws of the ops, which compare the streams of every call."""

import jax.numpy as jnp
import numpy as np

from based_jax import ops
from tests.arrays import array


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
