"""The sum of all rows so far."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.primitives.cumulative import cumulative_sum


@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_the_sum_so_far_in_one_layer(length, width, more, seed):
    u = np.random.default_rng(seed).uniform(-1, 1, size=(length, width))
    stack = cumulative_sum((length + more, width))
    np.testing.assert_allclose(stack(u), np.cumsum(u, axis=0), rtol=0, atol=EXACT)
    assert stack.account.layers == 1


def test_the_direct_computation_by_hand():
    np.testing.assert_array_equal(np.cumsum(np.array([[1.0], [2.0], [4.0]]), axis=0)[:, 0], [1, 3, 7])
