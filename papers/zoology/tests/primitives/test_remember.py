"""A function on some rows, with the others kept: any stack, any position, layers and rows counted."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.base_conv import Layer, Stack, convolve
from papers.zoology.primitives.remember import applied, remember, remember_window, rows_needed


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
