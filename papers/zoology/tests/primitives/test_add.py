"""A window added to a running sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.primitives.add import add, added


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_a_window_and_a_sum_in_two_layers(rows, width, more, seed):
    u = np.random.default_rng(seed).uniform(-1, 1, size=(2 * rows, width))
    stack = add((2 * rows + more, width), rows)
    z = stack(u, stack.shape)
    np.testing.assert_allclose(z[: 2 * rows], added(u, rows), rtol=0, atol=EXACT)
    np.testing.assert_array_equal(z[2 * rows :], 0)
    assert stack.account.layers == 2


def test_the_ones_are_counted_when_nothing_is_written_there():
    """Twice: the second window is the ones that the first addition left."""
    u = np.array([[1.0], [2.0], [10.0], [20.0]])
    twice = add((4, 1), 2).then(add((4, 1), 2))
    np.testing.assert_array_equal(twice(u)[:, 0], [1, 1, 12, 23])


@pytest.mark.parametrize("rows", [0, 3])
def test_both_have_to_fit(rows):
    with pytest.raises(ValueError, match=rf"rows = {rows}: expected 1\.\.2"):
        add((5, 1), rows)
