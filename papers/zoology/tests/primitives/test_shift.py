"""Rows down and up, by any number of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.primitives.shift import shift_down, shift_up, shifted_down, shifted_up


@given(st.integers(1, 9), st.integers(1, 3), st.data())
def test_shifts_in_one_layer(length, width, data):
    by = data.draw(st.integers(0, length))
    u = 1 + np.arange(float(length * width)).reshape(length, width)
    for shift, shifted in ((shift_down, shifted_down), (shift_up, shifted_up)):
        stack = shift((length, width), by)
        np.testing.assert_array_equal(stack(u), shifted(u, by))
        assert stack.account.layers == 1


def test_the_direct_computation_by_hand():
    u = np.array([[1.0], [2.0], [3.0]])
    np.testing.assert_array_equal(shifted_down(u, 1)[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(shifted_up(u, 2)[:, 0], [3, 0, 0])


def test_down_and_up_again_clears_the_last_rows():
    u = np.array([[1.0], [2.0], [3.0]])
    stack = shift_down((3, 1), 1).then(shift_up((3, 1), 1))
    np.testing.assert_array_equal(stack(u)[:, 0], [1, 2, 0])


@pytest.mark.parametrize("shift", [shift_down, shift_up])
@pytest.mark.parametrize("by", [-1, 4])
def test_more_rows_than_there_are(shift, by):
    with pytest.raises(ValueError, match=rf"by = {by}: expected 0\.\.3"):
        shift((3, 2), by)
