"""Columns added up, one by one and in blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.primitives.columns import column_blocks_summed, sum_all_columns, sum_column_blocks


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_blocks_in_one_layer(length, width, blocks, seed):
    u = np.random.default_rng(seed).uniform(-1, 1, size=(length, width * blocks))
    stack = sum_column_blocks(u.shape, width)
    np.testing.assert_allclose(stack(u), column_blocks_summed(u, width), rtol=0, atol=EXACT)
    assert stack.account.layers == 1


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_all_columns_in_the_first(length, width, seed):
    u = np.random.default_rng(seed).uniform(-1, 1, size=(length, width))
    z = sum_all_columns(u.shape)(u)
    np.testing.assert_allclose(z[:, 0], u.sum(axis=1), rtol=0, atol=EXACT)
    np.testing.assert_array_equal(z[:, 1:], 0)


def test_the_direct_computation_by_hand():
    u = np.array([[1.0, 2.0, 10.0, 20.0]])
    np.testing.assert_array_equal(column_blocks_summed(u, 2), [[11, 22, 0, 0]])


def test_the_width_of_a_block_divides():
    with pytest.raises(ValueError, match="the inner width = 5: expected a multiple of width = 2"):
        sum_column_blocks((3, 5), 2)
