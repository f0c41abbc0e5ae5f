"""Two layers of attention without softmax solve MQAR over triples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.mqar import attention
from papers.zoology.mqar.triples import draw, draw_any, from_sequence, one_hot, one_hot_blocks

seeds = st.integers(0, 2**32 - 1)


def expected(triples):
    """The sum over all matches, in the first block of the queries' rows."""
    answers = np.zeros((len(triples), 3, 3 * triples.tokens))
    answers[:, 2, : triples.tokens] = triples.matches @ one_hot(triples.values, triples.tokens)
    return answers.reshape(3 * len(triples), -1)


@given(st.integers(1, 8), st.integers(0, 4), seeds)
def test_keys_that_differ(count, more, seed):
    triples = draw(np.random.default_rng(seed), count, count + more)
    answers = attention.solve(one_hot_blocks(triples))
    np.testing.assert_array_equal(answers, expected(triples))
    np.testing.assert_array_equal(answers[2::3, : triples.tokens], one_hot(triples.answers, triples.tokens))


@given(st.integers(1, 8), st.integers(1, 5), seeds)
def test_keys_that_come_again_add_up(count, tokens, seed):
    triples = draw_any(np.random.default_rng(seed), count, tokens)
    np.testing.assert_array_equal(attention.solve(one_hot_blocks(triples)), expected(triples))


@given(st.integers(2, 8), st.integers(1, 5), seeds)
def test_the_next_token_of_a_sequence_does_not_leak(length, tokens, seed):
    """Of the triples (x_i, x_{i+1}, x_i): what is asked for is what the value is the answer to."""
    triples = from_sequence(np.random.default_rng(seed).integers(0, tokens, length), tokens)
    np.testing.assert_array_equal(attention.solve(one_hot_blocks(triples)), expected(triples))


@given(st.integers(1, 6), st.integers(1, 18), seeds)
def test_causal(count, rows, seed):
    """Row i is the same whatever comes after it."""
    u = np.random.default_rng(seed).normal(size=(3 * count, 6))
    rows = min(rows, 3 * count)
    cut = np.where(np.arange(3 * count)[:, None] < rows, u, 0)
    np.testing.assert_allclose(attention.solve(cut)[:rows], attention.solve(u)[:rows], atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 4])
def test_parameters_do_not_grow_with_the_length(tokens):
    for count in (1, 5):
        parameters = [layer.parameters for layer in attention.layers(count, tokens)]
        assert parameters == [27 * tokens**2] * 2


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"u.shape\[1\] = 4: expected a multiple of 3"):
        attention.solve(np.zeros((3, 4)))
