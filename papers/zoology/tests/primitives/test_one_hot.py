"""Binary codes to one-hot rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.primitives.one_hot import binary, code_width, one_hot, one_hot_rows


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_the_sum_of_copies_is_read_and_the_rest_carried(count, copies, margin, seed):
    rng = np.random.default_rng(seed)
    bits = code_width(count)
    numbers = rng.integers(0, count + 1, size=5)
    code = margin + 2
    at = code + copies * bits
    u = rng.normal(size=(5, at + count * bits))
    which = rng.integers(copies, size=5)
    u[:, code:at] = 0
    for row, (copy, number) in enumerate(zip(which, numbers, strict=True)):
        u[row, code + copy * bits : code + (copy + 1) * bits] = binary(np.array([number]), bits)
    y = one_hot(u.shape, count, code, copies, at)(u)
    np.testing.assert_array_equal(y[:, at : at + count], one_hot_rows(numbers, count))
    np.testing.assert_array_equal(y[:, :at], u[:, :at])
