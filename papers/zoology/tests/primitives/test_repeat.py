"""Columns and matrices repeated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.primitives.repeat import repeat_columns, repeat_matrix

SIZES = st.tuples(*(st.integers(1, 5),) * 3)


@given(SIZES, st.integers(0, 2**32 - 1))
def test_columns_whatever_the_others_hold(sizes, seed):
    length, width, times = sizes
    y = np.random.default_rng(seed).normal(size=(length, width * times))
    stack = repeat_columns(y.shape, times)
    np.testing.assert_array_equal(stack(y), np.repeat(y[:, :width], times, axis=1))
    assert stack.account.layers == 1


@given(SIZES, st.integers(0, 2**32 - 1))
def test_a_matrix_with_zeros_below(sizes, seed):
    length, width, times = sizes
    u = np.random.default_rng(seed).normal(size=(length, width))
    shape = (length * times, width)
    stack = repeat_matrix(shape, times)
    np.testing.assert_array_equal(stack(u, shape), np.tile(u, (times, 1)))
    assert stack.account.layers == 1


def test_the_direct_computations_by_hand():
    np.testing.assert_array_equal(np.repeat(np.array([[1.0, 2.0]]), 2, axis=1), [[1, 1, 2, 2]])
    np.testing.assert_array_equal(np.tile(np.array([[1.0], [2.0]]), (2, 1)), [[1], [2], [1], [2]])


@pytest.mark.parametrize(("repeat", "name"), [(repeat_columns, "width"), (repeat_matrix, "length")])
def test_times_divides_the_inner_matrix(repeat, name):
    with pytest.raises(ValueError, match=f"the inner {name} = 5: expected a multiple of times = 2"):
        repeat((5, 5), 2)
