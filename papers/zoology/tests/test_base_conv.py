"""The laws of layers and stacks: the equation, padding, composition, causality, counting, errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.base_conv import Account, Layer, Stack, convolve, stack

LENGTHS, WIDTHS, SEEDS = st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32 - 1)


def random_layer(rng, length, width, circular=False):
    return Layer(rng.normal(size=(width, width)), *rng.normal(size=(3, length, width)), circular=circular)


@given(LENGTHS, WIDTHS, st.booleans(), SEEDS)
def test_a_layer_is_its_equation_entry_by_entry(length, width, circular, seed):
    rng = np.random.default_rng(seed)
    layer = random_layer(rng, length, width, circular)
    u = rng.uniform(-1, 1, size=(length, width))
    for i in range(length):
        lags = range(length) if circular else range(i + 1)
        conv = sum(layer.filters[j] * u[(i - j) % length] for j in lags)
        expected = (u[i] @ layer.weights + layer.bias_1[i]) * (conv + layer.bias_2[i])
        np.testing.assert_allclose(layer(u)[i], expected, rtol=0, atol=EXACT)


@given(LENGTHS, WIDTHS, SEEDS)
def test_a_circular_convolution_is_a_product_of_transforms(length, width, seed):
    filters, u = np.random.default_rng(seed).normal(size=(2, length, width))
    transforms = np.fft.fft(filters, axis=0) * np.fft.fft(u, axis=0)
    y = convolve(filters, u, circular=True)
    np.testing.assert_allclose(y, np.fft.ifft(transforms, axis=0).real, rtol=0, atol=EXACT)


@given(LENGTHS, WIDTHS, st.integers(1, 3), SEEDS)
def test_the_past_does_not_hear_of_the_future(length, width, layers, seed):
    rng = np.random.default_rng(seed)
    causal = stack([random_layer(rng, length, width) for _ in range(layers)])
    u = rng.uniform(-1, 1, size=(length, width))
    cut = rng.integers(0, length)
    changed = u.copy()
    changed[cut:] = rng.normal(size=changed[cut:].shape)
    np.testing.assert_array_equal(causal(changed)[:cut], causal(u)[:cut])


def test_a_circular_layer_hears_of_the_future():
    layer = Layer(
        np.zeros((1, 1)), np.ones((2, 1)), np.array([[0.0], [1.0]]), np.zeros((2, 1)), circular=True
    )
    np.testing.assert_array_equal(layer(np.array([[1.0], [2.0]])), [[2.0], [1.0]])


@given(LENGTHS, WIDTHS, st.integers(0, 3), st.integers(0, 2), SEEDS)
def test_the_input_is_padded_and_the_corner_read(length, width, rows, columns, seed):
    rng = np.random.default_rng(seed)
    inner = (length + rows, width + columns)
    model = stack([random_layer(rng, *inner) for _ in range(2)])
    u = rng.uniform(-1, 1, size=(length, width))
    padded = np.pad(u, ((0, rows), (0, columns)))
    first, second = model.layers
    whole = second(first(padded))
    np.testing.assert_array_equal(model(u), whole[:length, :width])
    np.testing.assert_array_equal(model(u, inner), whole)
    np.testing.assert_array_equal(model(u, (1, width)), whole[:1, :width])


@given(LENGTHS, WIDTHS, st.integers(0, 3), st.integers(0, 3), SEEDS)
def test_layers_add_up_and_functions_compose(length, width, before, after, seed):
    """Zoology, lemma H.11."""
    rng = np.random.default_rng(seed)
    f, g = (
        Stack((length, width), tuple(random_layer(rng, length, width) for _ in range(layers)))
        for layers in (before, after)
    )
    u = rng.uniform(-1, 1, size=(length, width))
    np.testing.assert_array_equal(f.then(g)(u), g(f(u)))
    assert f.then(g).account.layers == before + after
    assert f.then().layers == f.layers


def test_no_layers_are_the_identity():
    u = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(Stack((4, 5))(u), u)


def test_what_a_stack_costs():
    """By hand: 2 x 2 weights and three arrays of 3 x 2, in two layers; one has 4 + 1 + 2 + 0 entries."""
    filters, bias_1 = np.zeros((2, 3, 2))
    bias_1[0, 1] = 5
    filters[0] = 1
    sparse = Layer(np.ones((2, 2)), bias_1, filters, np.zeros((3, 2)))
    empty = Layer(np.zeros((2, 2)), *np.zeros((3, 3, 2)))
    assert (sparse.parameters, sparse.nonzeros) == (22, 7)
    assert stack([sparse, empty]).account == Account(2, length=3, width=2, parameters=44, nonzeros=7)


def test_shapes_that_do_not_fit_are_named(unchecked):
    rows = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"weights has shape \(3, 3\): expected \(2, 2\)"):
        Layer(np.zeros((3, 3)), rows, rows, rows)
    with pytest.raises(ValueError, match=r"bias_2 has shape \(2, 2\): expected \(3, 2\)"):
        Layer(np.zeros((2, 2)), rows, rows, np.zeros((2, 2)))
    layer = Layer(np.zeros((2, 2)), rows, rows, rows)
    with pytest.raises(ValueError, match=r"u has shape \(2, 2\): expected \(3, 2\)"):
        layer(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"filters of a layer has shape \(3, 2\): expected \(4, 2\)"):
        Stack((4, 2), (layer,))
    with pytest.raises(ValueError, match=r"filters of a layer has shape \(3, 2\): expected \(4, 2\)"):
        Stack((4, 2)).then(stack([layer]))
    with pytest.raises(ValueError, match=r"u\.shape = \(4, 2\): expected at most the inner shape \(3, 2\)"):
        stack([layer])(np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"shape = \(3, 3\): expected at most the inner shape"):
        stack([layer])(rows, (3, 3))
    with pytest.raises(ValueError, match=r"layers = \[\]: expected at least one"):
        stack([])
