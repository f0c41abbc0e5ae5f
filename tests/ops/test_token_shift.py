"""The previous token of the same segment, over calls."""

import jax
import numpy as np
from hypothesis import given, settings

from based_jax import ops
from tests.arrays import array
from tests.ops import draw


@given(draw.seeds, draw.segment_ids(2, 7), draw.counts(2, 7))
@settings(max_examples=10)
def test_definition_in_two_calls(seed, ids, counts):
    """Segments, padding of the first call's rows, and a second call after it."""
    x = np.random.default_rng(seed).normal(size=(2, 9, 3)).astype(np.float32)
    mask = draw.mask(counts, 7)
    first, state = shift(x[:, :7], None, array(ids), array(mask))
    second, _ = shift(x[:, 7:], state, None, None)
    for row, count in enumerate(counts):
        for t in range(count):
            begins = t == 0 or ids[row, t] != ids[row, t - 1]
            np.testing.assert_array_equal(first[row, t], 0 if begins else x[row, t - 1])
        np.testing.assert_array_equal(second[row, 0], x[row, count - 1] if count else 0)
        np.testing.assert_array_equal(second[row, 1], x[row, 7])


@jax.jit
def shift(x, state, ids, mask):
    return ops.token_shift(x, initial_state=state, return_state=True, segment_ids=ids, mask=mask)
