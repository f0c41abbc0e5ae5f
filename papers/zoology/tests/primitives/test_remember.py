"""A function on some rows, with the others kept: any stack, any position, layers and rows counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.base_conv import Layer, Stack, convolve
from papers.zoology.basic_layers import convolution, delta
from papers.zoology.primitives.remember import applied, remember, remember_window, rows_needed
from papers.zoology.primitives.shift import shift_up


def random_stack(rng, size, width, layers, circular):
    """Layers that keep a vector's order of magnitude; each may be a circular one, or have a short filter."""

    def layer():
        filters = rng.uniform(-1, 1, size=(size, width)) / size
        filters[rng.integers(1, size + 1) :] = 0
        weights = rng.uniform(-1, 1, size=(width, width)) / width
        biases = rng.uniform(-1, 1, size=(2, size, width))
        return Layer(weights, biases[0], filters, biases[1], circular and bool(rng.integers(2)))

    return Stack((size, width), tuple(layer() for _ in range(layers)))


@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
def test_any_stack_on_any_rows(size, width, layers, circular, above, below, more, seed):
    rng = np.random.default_rng(seed)
    f = random_stack(rng, size, width, layers, circular)
    u = rng.uniform(-1, 1, size=(above + size + below, width))
    stack = remember((rows_needed(f, len(u)) + more, width), f, above, len(u))
    z = stack(u, stack.shape)
    np.testing.assert_allclose(z[: len(u)], applied(u, f, above), rtol=0, atol=EXACT)
    np.testing.assert_array_equal(z[len(u) :], 0)
    assert stack.account.layers == 2 * layers + 1


def test_one_layer_takes_three_where_the_paper_has_eight():
    f = shift_up((2, 1), 1)
    stack = remember((rows_needed(f, 4), 1), f, 1, 4)
    u = np.array([[1.0], [2.0], [3.0], [4.0]])
    np.testing.assert_array_equal(stack(u)[:, 0], [1, 3, 0, 4])
    assert stack.account.layers == 3


def test_no_layers_are_the_identity():
    stack = remember((3, 1), Stack((2, 1)), 0, 3)
    assert stack.account.layers == 0


def test_rows_needed_by_hand():
    """4 rows and a filter that reaches 1: slots of 5 rows, three for one layer, four for more."""
    short = convolution((3, 1), delta(3, 1))
    assert rows_needed(short, 4) == 15
    assert rows_needed(short.then(short, short), 4) == 20
    assert rows_needed(convolution((3, 1), delta(3, 1), circular=True), 4) == 21


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 4), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_a_window_in_two_layers(size, width, below, more, seed):
    rng = np.random.default_rng(seed)
    u = rng.uniform(-1, 1, size=(size + below, width))
    filters, factors = rng.uniform(-1, 1, size=(2, size, width))
    stack = remember_window((2 * len(u) + more, width), filters, factors, len(u))
    expected = np.concatenate([factors * convolve(filters, u[:size]), u[size:]])
    z = stack(u, stack.shape)
    np.testing.assert_allclose(z[: len(u)], expected, rtol=0, atol=EXACT)
    np.testing.assert_array_equal(z[len(u) :], 0)
    assert stack.account.layers == 2


def test_what_does_not_fit_is_named():
    f = convolution((2, 1), delta(2, 1))
    with pytest.raises(ValueError, match=r"shape = \(14, 1\): expected at least 15 rows, to put 4 aside"):
        remember((14, 1), f, 1, 4)
    with pytest.raises(ValueError, match=r"start = 3: expected 0\.\.2: 2 rows of 4"):
        remember((15, 1), f, 3, 4)
    with pytest.raises(ValueError, match=r"f\.shape = \(2, 1\): expected 3 columns"):
        remember((15, 3), f, 1, 4)
    with pytest.raises(ValueError, match=r"shape = \(7, 1\): expected at least 8 rows"):
        remember_window((7, 1), np.ones((2, 1)), np.ones((2, 1)), 4)
    with pytest.raises(ValueError, match=r"factors has shape \(1, 1\): expected \(2, 1\)"):
        remember_window((8, 1), np.ones((2, 1)), np.ones((1, 1)), 4)
    with pytest.raises(ValueError, match="rows = 1: expected at least the 2 of the window"):
        remember_window((7, 1), np.ones((2, 1)), np.ones((2, 1)), 1)
