"""Degrees of BaseConv stacks and of MQAR, and theorem F.4's message."""

from math import log2

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.based.bounds.degree import (
    coefficients,
    degree,
    layers_for,
    outputs,
    points,
)
from papers.based.bounds.degree_checks import random_stack
from papers.based.bounds.message import coefficient_bits, layers_needed, monomials

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(0, 6), st.integers(1, 3), seeds)
def test_coefficients_give_the_values_back(variables, functions, seed):
    values = np.random.default_rng(seed).integers(-5, 6, size=(2**variables, functions))
    inputs = points(variables)
    products = np.where(inputs[None] == 1, inputs[:, None], 1).prod(axis=2)  # (input, monomial)
    np.testing.assert_array_equal(products @ coefficients(values), values)


@given(st.integers(1, 8), seeds)
def test_the_degree_is_that_of_the_largest_monomial(variables, seed):
    rng = np.random.default_rng(seed)
    chosen = rng.random((3, variables)) < 0.5  # three monomials
    values = (points(variables)[:, None] * chosen + ~chosen).prod(axis=2) @ np.array([1.0, 0.5, 2.0])
    assert degree(values) == chosen.sum(axis=1).max()


@given(st.integers(0, 3), st.sampled_from([(1, 1), (1, 5), (5, 1), (3, 2), (3, 3)]), seeds)
def test_a_layer_at_most_doubles_the_degree(layers, shape, seed):
    stack = random_stack(np.random.default_rng(seed), layers, shape)
    assert degree(outputs(stack, *shape)) == min(2**layers, shape[0] * shape[1])


@given(st.integers(1, 10**6))
def test_the_fewest_layers_of_a_degree(largest):
    layers = layers_for(largest)
    assert 2**layers >= largest
    assert layers == 0 or 2 ** (layers - 1) < largest


@given(st.integers(0, 8), st.integers(0, 9))
def test_monomials_are_counted(variables, largest):
    assert monomials(variables, largest) == (points(variables).sum(axis=1) <= largest).sum()


@given(st.integers(2, 2**40), st.floats(1, 8))
def test_too_few_layers_hold_too_few_bits(pairs, factor):
    width = min(int(np.ceil(log2(pairs) * factor)), pairs)
    layers = layers_needed(pairs, width)

    def held(depth):
        return monomials(width, 2**depth) * coefficient_bits(log2(pairs), depth)

    assert held(layers) >= pairs
    assert layers == 0 or held(layers - 1) < pairs
