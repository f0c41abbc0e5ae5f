"""MQAR in dyadic intervals: the answers, the pairs that meet, the comparisons."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.mqar import dyadic
from papers.zoology.mqar.triples import draw_any

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(1, 40), st.integers(1, 60), seeds)
def test_answers(count, tokens, seed):
    """Of keys that come again the first is found, although the levels may find different ones."""
    triples = draw_any(np.random.default_rng(seed), count, tokens)
    np.testing.assert_array_equal(dyadic.solve(triples)[0], triples.answers)
