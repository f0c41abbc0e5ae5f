"""Degrees of BaseConv stacks and of MQAR, and theorem F.4's message."""

from math import comb, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.based.bounds.degree import (
    coefficients,
    degree,
    layers_for,
    outputs,
    points,
    product,
    recall,
    recall_degree,
)
from papers.based.bounds.degree_checks import random_stack
from papers.based.bounds.message import coefficient_bits, growth, layers_needed, monomials
from papers.based.mqar import base_conv_binary

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


def test_constants_have_degree_0():
    assert degree(np.zeros(8)) == degree(np.full((4, 2), 3)) == degree(np.ones(1)) == 0


@given(st.integers(0, 3), st.sampled_from([(1, 1), (1, 5), (5, 1), (3, 2), (3, 3)]), seeds)
def test_a_layer_at_most_doubles_the_degree(layers, shape, seed):
    stack = random_stack(np.random.default_rng(seed), layers, shape)
    assert degree(outputs(stack, *shape)) == min(2**layers, shape[0] * shape[1])


@pytest.mark.parametrize("layers", range(4))
def test_the_product_of_all_rows(layers):
    rows = 2**layers
    last = outputs(product(layers), rows, 1)[:, -1, 0]
    np.testing.assert_array_equal(last, points(rows).prod(axis=1))
    assert degree(last) == rows
    assert product(layers).account.layers == layers == layers_for(rows)


@pytest.mark.parametrize(
    ("bits", "pairs"), [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (1, 6), (2, 2), (2, 3), (3, 2)]
)
@pytest.mark.parametrize("first", [False, True])
def test_the_degree_of_recall(bits, pairs, first):
    assert degree(recall(bits, pairs, first)) == recall_degree(bits, pairs, first)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "pairs"), [(2, 5), (2, 6), (3, 3), (3, 4), (1, 8), (1, 9), (5, 2)])
def test_the_degree_of_recall_at_larger_sizes(bits, pairs):
    assert degree(recall(bits, pairs, first=True)) == recall_degree(bits, pairs, first=True)


@given(st.sampled_from([(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3)]), seeds)
def test_whichever_match_counts_the_degree_grows_with_the_pairs(size, seed):
    """A match is drawn anew for every input."""
    bits, pairs = size
    query, keys, values = np.split(points(bits + pairs * (bits + 1)), [bits, bits * (pairs + 1)], axis=1)
    match = (query[:, None] == keys.reshape(-1, pairs, bits)).all(axis=2)
    chosen = (match * np.random.default_rng(seed).random(match.shape)).argmax(axis=1)
    answers = values[np.arange(len(values)), chosen] * match.any(axis=1)
    assert degree(answers) >= bits * pairs


def test_recall_is_the_first_value_or_the_sum():
    keys_and_values = points(7).astype(int)  # q, k0, k1, k2, v0, v1, v2
    for row, every, first in zip(keys_and_values, recall(1, 3), recall(1, 3, first=True), strict=True):
        found = [int(value) for key, value in zip(row[1:4], row[4:], strict=True) if key == row[0]]
        assert (every, first) == (sum(found), found[0] if found else 0)


@pytest.mark.parametrize("bits", [1, 2])
def test_a_solver_computes_that_polynomial(bits):
    """Behind one pair: the value that the layers answer is the function whose degree is counted."""
    solver = base_conv_binary.solver(2, bits, strict=True)
    inputs = points(bits * 2 + bits)
    query, key, value = np.split(inputs, 3, axis=1)
    rows = np.zeros((len(inputs), 2, 3 * bits))
    rows[:, 1, :bits], rows[:, 0, bits : 2 * bits], rows[:, 0, 2 * bits :] = query, key, value
    answers = np.array([solver(row, (2, bits))[1] for row in rows])
    assert degree(answers) == recall_degree(bits, 1)
    assert solver.account.layers >= layers_for(recall_degree(bits, 1))


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


def test_a_million_keys():
    assert layers_needed(2**20, 20) == 2
    assert comb(20, 2) + 21 == monomials(20, 2)  # of one layer; of 6 * 20 bits each
    assert monomials(20, 2) * 120 < 2**20 <= monomials(20, 4) * 240


@given(st.floats(2, 40), st.floats(0.1, 1))
def test_the_closed_form_is_below_the_inequality(log_log_pairs, epsilon):
    row = growth(2.0**log_log_pairs, epsilon)
    assert not row.large or row.layers >= row.bound


def test_theorem_f4_says_something():
    row = growth(2.0**20, epsilon=0.5)
    assert row.large
    assert row.bound == 5
    assert row.layers == 10


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: coefficients(np.zeros(6)), r"len\(values\) = 6"),
        (lambda: layers_for(0), "degree = 0"),
        (lambda: recall(0, 1), "bits = 0"),
        (lambda: recall(1, 0), "pairs = 0"),
        (lambda: layers_needed(1, 1), "pairs = 1"),
        (lambda: layers_needed(16, 3), "width = 3"),
        (lambda: growth(1, 0.5), "log_pairs = 1"),
        (lambda: growth(16, 0.0), "epsilon = 0.0"),
    ],
)
def test_arguments_out_of_range_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
