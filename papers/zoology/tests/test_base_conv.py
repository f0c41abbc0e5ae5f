"""The laws of layers and stacks: the equation, padding, composition, causality, counting, errors."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.base_conv import Layer, convolve, stack

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
