"""Associative recall by sorting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.recall import look_up, recall


@given(st.integers(0, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_every_query_finds_the_last_earlier_key(power, bits, seed):
    triples = 2**power
    u = np.random.default_rng(seed).integers(2, size=(20, 3 * triples * bits)).astype(np.float64)
    np.testing.assert_array_equal(np.stack(recall(list(u.T), bits), -1), look_up(u, bits))
