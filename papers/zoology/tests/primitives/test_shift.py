"""Rows down and up, by any number of them."""

import numpy as np
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
