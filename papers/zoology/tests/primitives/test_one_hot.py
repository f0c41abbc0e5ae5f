"""Binary codes to one-hot rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.primitives.checks import one_hot_error
from papers.zoology.primitives.one_hot import (
    binary,
    code_width,
    codes,
    literals,
    one_hot,
    one_hot_layers,
    one_hot_rows,
)


@given(st.integers(1, 33))
def test_every_code_becomes_its_row(count):
    assert one_hot_error(count) == 0


@pytest.mark.parametrize(
    ("count", "bits", "layers"),
    [(1, 1, 1), (2, 2, 2), (3, 2, 2), (4, 3, 3), (15, 4, 3), (16, 5, 4), (2**16, 17, 6)],
)
def test_layers_by_hand(count, bits, layers):
    assert (code_width(count), one_hot_layers(count)) == (bits, layers)
    if count <= 16:
        assert one_hot((1, count * bits), count).account.layers == layers


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


def test_literals_of_two_bits():
    signs, constants = literals(codes(3))  # 1, 2, 3: bit 0 is 1, 0, 1 and bit 1 is 0, 1, 1
    np.testing.assert_array_equal(signs, [[1, -1, 1, 0, 0, 0], [0, 0, 0, -1, 1, 1]])
    np.testing.assert_array_equal(constants, [0, 1, 0, 1, 0, 0])


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="count = 0: expected at least 1"):
        one_hot((2, 2), 0)
    with pytest.raises(ValueError, match="copies = 0: expected at least 1"):
        one_hot((2, 2), 1, copies=0)
    with pytest.raises(ValueError, match="expected within 5 columns"):
        one_hot((2, 5), 3)
