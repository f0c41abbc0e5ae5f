"""MQAR in dyadic intervals: the answers, the pairs that meet, the comparisons."""

from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.mqar import dyadic
from papers.zoology.mqar.triples import draw, draw_any

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(1, 40), st.integers(1, 60), seeds)
def test_answers(count, tokens, seed):
    """Of keys that come again the first is found, although the levels may find different ones."""
    triples = draw_any(np.random.default_rng(seed), count, tokens)
    np.testing.assert_array_equal(dyadic.solve(triples)[0], triples.answers)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33])
def test_every_earlier_key_meets_every_query_once(count):
    met = np.zeros((count, count), int)
    for meeting in dyadic.meetings(count):
        assert len(meeting.keys) == 2**meeting.level >= len(meeting.queries) > 0
        met[np.ix_(meeting.queries, meeting.keys)] += 1
    np.testing.assert_array_equal(met, np.tril(np.ones((count, count)), -1))


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9), min_size=1))
def test_search_and_sort(queries, keys):
    queries, keys = sorted(queries), sorted(keys)
    positions, work, depth = dyadic.parallel_search(queries, keys)
    np.testing.assert_array_equal(positions, np.searchsorted(keys, queries))
    most = len(keys).bit_length()
    assert work <= len(queries) * most
    assert depth <= len(queries).bit_length() * most
    items = [(token, index) for index, token in enumerate(reversed(queries + keys))]
    assert dyadic.merge_sort(items)[0] == sorted(items)


def test_comparisons_grow_as_t_log_squared():
    """Twice the triples, a little more than twice the work; steps by the square of the logarithm."""
    for count in (16, 64, 256, 1024):
        _, cost = dyadic.solve(draw(np.random.default_rng(0), count, 2 * count))
        assert cost.sorting + cost.searching <= count * log2(count) ** 2
        assert cost.steps <= log2(count) ** 2
