"""MQAR by convolutions with shifts found in the data."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.mqar import top_shifts
from papers.zoology.mqar.triples import draw, one_hot

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
