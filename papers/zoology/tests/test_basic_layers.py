"""The layers of lemma H.7, each in one BaseConv layer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.base_conv import convolve
from papers.zoology.basic_layers import convolution, gate, linear, masked_convolution


@given(st.integers(1, 9), st.integers(1, 4), st.booleans(), st.integers(0, 2**32 - 1))
def test_each_is_what_it_says_in_one_layer(length, width, circular, seed):
    rng = np.random.default_rng(seed)
    u, factors, filters = rng.uniform(-1, 1, size=(3, length, width))
    weights, shape = rng.normal(size=(width, width)), (length, width)
    conv = convolve(filters, u, circular)
    for stack, expected in (
        (linear(shape, weights), u @ weights),
        (convolution(shape, filters, circular), conv),
        (gate(shape, factors), factors * u),
        (gate(shape, factors[:, :1]), factors[:, :1] * u),
        (masked_convolution(shape, filters, factors, circular), factors * conv),
    ):
        np.testing.assert_allclose(stack(u), expected, rtol=0, atol=EXACT)
        assert stack.account.layers == 1
