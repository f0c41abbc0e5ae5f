"""Tokens of p one-hot blocks, and the degrees of equality and recall."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.based.bounds.p_hot import coefficients, degree, encode, monomials

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(1, 4), st.integers(2, 4), st.booleans())
def test_a_token_is_its_digits(p, base, almost):
    tokens = np.arange(base**p)
    blocks = encode(tokens, p, base, almost).reshape(len(tokens), p, -1)
    digits = np.where(blocks.any(axis=2), blocks.argmax(axis=2), base - 1)
    np.testing.assert_array_equal(digits @ base ** np.arange(p)[::-1], tokens)
    assert blocks.shape[2] == base - int(almost)
    assert (blocks.sum(axis=2) == 1).all() != almost


@given(st.integers(1, 4), st.integers(2, 4), seeds)
def test_the_coefficients_give_the_values_back(blocks, base, seed):
    values = np.random.default_rng(seed).integers(-5, 6, size=(base,) * blocks)
    columns, sizes = monomials(blocks, base, almost=True)
    found = coefficients(values).reshape(-1)
    np.testing.assert_array_equal(columns @ found, values.reshape(-1))
    assert degree(values) == sizes[found != 0].max(initial=0)
