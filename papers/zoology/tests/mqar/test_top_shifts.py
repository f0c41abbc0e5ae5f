"""MQAR by convolutions with shifts found in the data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.mqar import top_shifts
from papers.zoology.mqar.triples import draw, draw_any, one_hot, one_hot_rows

seeds = st.integers(0, 2**32 - 1)


def expected(triples):
    """The sum over all matches in the queries' rows."""
    rows = np.zeros((len(triples), 3, triples.tokens))
    rows[:, 2] = triples.matches @ one_hot(triples.values, triples.tokens)
    return rows.reshape(-1, triples.tokens)


@given(st.integers(2, 8), st.integers(0, 3), st.sets(st.integers(1, 7), min_size=1, max_size=3), seeds)
def test_answers_where_the_distances_are_few(count, more, distances, seed):
    distances = sorted({min(distance, count - 1) for distance in distances})
    triples = draw(np.random.default_rng(seed), count, count + more, distances)
    answers = top_shifts.solve(triples, len(distances))
    np.testing.assert_array_equal(answers, expected(triples))
    np.testing.assert_array_equal(answers[2::3], one_hot(triples.answers, triples.tokens))


@given(st.integers(2, 6), st.integers(1, 4), seeds)
def test_all_shifts_answer_everything(count, tokens, seed):
    """Keys that come again add up."""
    triples = draw_any(np.random.default_rng(seed), count, tokens)
    np.testing.assert_array_equal(top_shifts.solve(triples, count - 1), expected(triples))


@given(st.integers(2, 8), st.integers(1, 4), seeds)
def test_correlation_counts_matches(count, tokens, seed):
    triples = draw_any(np.random.default_rng(seed), count, tokens)
    query, key = np.nonzero(triples.matches)
    counts = np.bincount(query - key, minlength=count)
    np.testing.assert_array_equal(top_shifts.correlation(one_hot_rows(triples))[1:], counts[1:])


def test_layers_and_parameters():
    """Five layers; parameters grow with t rows columns."""
    for count, tokens, shifts in ((3, 2, [5]), (6, 4, [5, 8, 14])):
        account = top_shifts.solver(3 * count, tokens, np.array(shifts)).account
        assert account.layers == 5
        assert account.parameters == 45 * tokens**2 + 90 * len(shifts) * (3 * count) * tokens


def test_what_is_refused():
    u = one_hot_rows(draw(np.random.default_rng(0), 3, 3))
    with pytest.raises(ValueError, match="count = 3: expected from 1 to T - 1 = 2"):
        top_shifts.top_shifts(u, 3)
    with pytest.raises(ValueError, match=r"shifts = .*: expected 2 mod 3 each"):
        top_shifts.solver(9, 3, np.array([4]))
