"""Sums of interactions: loops, the form by counts, and what they do not depend on."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.data import counts, random_interactions, sample
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close


@given(draw.seeds, st.integers(1, 6), st.integers(1, 9), st.integers(1, 3))
def test_targets_are_sums_over_all_entities(seed, size, length, outputs):
    rng = np.random.default_rng(seed)
    truth = random_interactions(rng, size, outputs)
    x = sample(rng, size, length, 2)
    expected = [[sum(truth.f[a, b] * truth.w[b] for b in row) for a in row] for row in x]
    assert_close(truth.targets(x), np.array(expected), FLOAT64)
    by_counts = np.einsum("nls,ns,sk->nlk", truth.f[x], counts(x, size), truth.w)
    assert_close(truth.targets(x), by_counts, FLOAT64)
    assert_close(truth.targets(x[0]), np.array(expected)[0], FLOAT64)
    order = rng.permutation(length)
    assert_close(truth.targets(x[:, order]), np.array(expected)[:, order], FLOAT64)
