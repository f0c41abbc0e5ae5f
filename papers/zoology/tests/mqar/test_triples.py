"""Triples of keys, values and queries: their answers and encodings."""

import numpy as np
import pytest
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


@given(st.integers(1, 6), st.integers(1, 9), seeds)
def test_encodings_hold_the_tokens(count, tokens, seed):
    triples = mqar.draw_any(np.random.default_rng(seed), count, tokens)
    rows = mqar.one_hot_rows(triples)
    blocks = mqar.one_hot_blocks(triples).reshape(count, 3, 3, tokens)
    digits = mqar.binary_rows(triples)
    for role, name in enumerate(("keys", "values", "queries")):
        token = getattr(triples, name)
        np.testing.assert_array_equal(rows[role::3], np.eye(tokens)[token])
        np.testing.assert_array_equal(blocks[:, role, role], np.eye(tokens)[token])
        np.testing.assert_array_equal(digits[role::3] @ 2 ** np.arange(digits.shape[1]), token)
    assert blocks.sum() == rows.sum() == 3 * count


def test_triples_of_a_sequence():
    triples = mqar.from_sequence(np.array([4, 7, 1, 4]), 8)
    np.testing.assert_array_equal(triples.keys, [4, 7, 1])
    np.testing.assert_array_equal(triples.values, [7, 1, 4])
    np.testing.assert_array_equal(triples.answers, [-1, -1, -1])


def test_what_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="tokens = 2: expected at least count = 3"):
        mqar.draw(rng, 3, 2)
    with pytest.raises(ValueError, match=r"distances = .0.: expected at least 1"):
        mqar.draw(rng, 3, 3, [0])
    with pytest.raises(ValueError, match=r"values = .*: expected tokens from 0 to 2"):
        mqar.Triples(np.array([1]), np.array([3]), np.array([1]), 3)
    with pytest.raises(ValueError, match=r"queries has shape \(2,\)"):
        mqar.Triples(np.array([1]), np.array([1]), np.array([1, 1]), 3)
