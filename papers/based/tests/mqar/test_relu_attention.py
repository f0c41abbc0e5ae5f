"""MQAR over binary tokens by attention with ReLU."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.based.mqar import relu_attention
from papers.zoology.mqar.triples import NONE, binary_rows, draw, draw_any
from papers.zoology.primitives.one_hot import binary

seeds = st.integers(0, 2**32 - 1)


def expected(triples, width):
    rows = np.zeros((len(triples), 3, width))
    found = triples.answers != NONE
    rows[found, 2] = 2 * binary(triples.answers[found], width) - 1
    return rows.reshape(-1, width)


@given(st.integers(1, 8), st.integers(1, 9), seeds)
def test_the_first_match_answers(count, tokens, seed):
    u = binary_rows(triples := draw_any(np.random.default_rng(seed), count, tokens))
    np.testing.assert_array_equal(relu_attention.solve(u), expected(triples, u.shape[1]))


@given(st.integers(1, 8), st.integers(0, 9), seeds)
def test_keys_that_differ(count, more, seed):
    u = binary_rows(triples := draw(np.random.default_rng(seed), count, count + more))
    np.testing.assert_array_equal(relu_attention.solve(u), expected(triples, u.shape[1]))


@given(st.integers(1, 6), st.integers(1, 18), seeds)
def test_causal(count, rows, seed):
    u = binary_rows(draw_any(np.random.default_rng(seed), count, 4))
    rows = min(rows, len(u))
    cut = np.where(np.arange(len(u))[:, None] < rows, u, 0)
    np.testing.assert_array_equal(relu_attention.solve(cut)[:rows], relu_attention.solve(u)[:rows])


@given(st.integers(1, 9), seeds)
def test_first_match_of_a_row(size, seed):
    z = np.random.default_rng(seed).integers(0, 2, (size, size)).astype(float)
    first = np.where(z.any(axis=1), z.argmax(axis=1), size - 1)
    np.testing.assert_array_equal(relu_attention.first_match(z), np.eye(size)[first])


def test_what_is_refused():
    with pytest.raises(ValueError, match="rows of u = 4: expected a multiple of 3"):
        relu_attention.solve(np.zeros((4, 2)))
