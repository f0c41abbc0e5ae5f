"""Triples of keys, values and queries: their answers and encodings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.mqar import triples as mqar

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(1, 9), st.integers(1, 5), seeds)
def test_answers_are_the_first_earlier_match(count, tokens, seed):
    triples = mqar.draw_any(np.random.default_rng(seed), count, tokens)
    for i, answer in enumerate(triples.answers):
        found = [triples.values[j] for j in range(i) if triples.keys[j] == triples.queries[i]]
        assert answer == (found[0] if found else mqar.NONE)


@given(st.integers(1, 9), st.integers(0, 3), st.sets(st.integers(1, 9), min_size=1), seeds)
def test_drawn_keys_differ_and_lie_at_the_distances(count, more, distances, seed):
    triples = mqar.draw(np.random.default_rng(seed), count, count + more, sorted(distances))
    assert len(set(triples.keys)) == len(triples) == count
    query, key = np.nonzero(triples.matches)
    assert set(query - key) <= distances
    if len(distances) == 1:
        np.testing.assert_array_equal(query, np.arange(min(*distances, count), count))
