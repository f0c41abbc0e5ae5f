"""Tokens of p one-hot blocks, and the degrees of equality and recall."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.based.bounds import degree as binary_degree
from papers.based.bounds.degree_checks import SIZES, SMALL, wrong_pairs
from papers.based.bounds.p_hot import (
    coefficients,
    degree,
    encode,
    equality,
    lowest_degree,
    monomials,
    recall,
)

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(1, 4), st.integers(2, 4), st.booleans())
def test_a_token_is_its_digits(p, base, almost):
    tokens = np.arange(base**p)
    blocks = encode(tokens, p, base, almost).reshape(len(tokens), p, -1)
    digits = np.where(blocks.any(axis=2), blocks.argmax(axis=2), base - 1)
    np.testing.assert_array_equal(digits @ base ** np.arange(p)[::-1], tokens)
    assert blocks.shape[2] == base - int(almost)
    assert (blocks.sum(axis=2) == 1).all() != almost


def test_one_block_is_one_hot_and_base_2_is_binary():
    np.testing.assert_array_equal(encode(np.arange(5), 1, 5), np.eye(5))
    np.testing.assert_array_equal(1 - encode(np.arange(8), 3, 2, almost=True), binary_degree.points(3))


@given(st.integers(1, 4), st.integers(2, 4), seeds)
def test_the_coefficients_give_the_values_back(blocks, base, seed):
    values = np.random.default_rng(seed).integers(-5, 6, size=(base,) * blocks)
    columns, sizes = monomials(blocks, base, almost=True)
    found = coefficients(values).reshape(-1)
    np.testing.assert_array_equal(columns @ found, values.reshape(-1))
    assert degree(values) == sizes[found != 0].max(initial=0)


@pytest.mark.parametrize(("blocks", "base"), [(1, 2), (1, 4), (2, 3), (4, 2), (4, 3)])
def test_one_polynomial_on_almost_p_hot_tokens_and_many_on_p_hot_ones(blocks, base):
    for almost in (True, False):
        columns, _ = monomials(blocks, base, almost)
        assert np.linalg.matrix_rank(columns) == len(columns) == base**blocks
        assert (columns.shape[1] == base**blocks) == almost


def test_the_monomials_are_products_of_one_variable_a_block():
    columns, sizes = monomials(2, 3)
    first, second = encode(np.arange(9), 2, 3).reshape(9, 2, 3).transpose(1, 0, 2)
    one = np.ones((9, 1))
    expected = [a * b for a, b in product(np.hstack([first, one]).T, np.hstack([second, one]).T)]
    np.testing.assert_array_equal(columns, np.stack(expected, axis=1))
    assert sizes.tolist() == 3 * [2, 2, 2, 1] + [1, 1, 1, 0]


@pytest.mark.parametrize(("p", "base"), SIZES)
def test_equality_has_degree_2_p(p, base):
    assert wrong_pairs(p, base) == 0
    assert degree(equality(p, base)) == 2 * p


@pytest.mark.parametrize(("p", "base"), SMALL)
def test_no_polynomial_on_p_hot_tokens_is_lower(p, base):
    assert lowest_degree(equality(p, base)) == lowest_degree(equality(p, base), almost=True) == 2 * p


@pytest.mark.parametrize(("p", "base"), [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (3, 2)])
def test_recall_has_one_more(p, base):
    assert degree(recall(p, base)) == 2 * p + 1


def test_recall_on_one_hot_tokens():
    assert lowest_degree(recall(1, 3)) == 3


@given(st.integers(1, 6), seeds)
def test_base_2_is_the_moebius_transform(blocks, seed):
    values = np.random.default_rng(seed).integers(0, 2, size=(2,) * blocks)
    assert degree(values) == binary_degree.degree(values.reshape(-1))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((1, 0, 2), "p = 0"), ((1, 1, 1), "base = 1"), ((4, 2, 2), "tokens"), ((-1, 2, 2), "tokens")],
)
def test_arguments_out_of_range_are_named(arguments, named):
    token, p, base = arguments
    with pytest.raises(ValueError, match=named):
        encode(np.array([token]), p, base)
