"""Sums of interactions: loops, the form by counts, and what they do not depend on."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.data import Interactions, counts, random_interactions, sample
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


@given(draw.seeds, st.integers(1, 6), st.integers(1, 9))
def test_counts(seed, size, length):
    x = np.random.default_rng(seed).integers(size, size=(2, 3, length))
    result = counts(x, size)
    assert result.shape == (2, 3, size)
    for index in np.ndindex(2, 3):
        expected = Counter(x[index].tolist())
        assert result[index].tolist() == [expected[symbol] for symbol in range(size)]


def test_samples_follow_their_probabilities():
    rng = np.random.default_rng(0)
    assert sample(rng, 4, 1, 1).shape == (1, 1)
    frequencies = counts(sample(rng, 3, 10_000, 1, np.array([0.7, 0.0, 0.3])), 3)[0] / 10_000
    assert frequencies[1] == 0
    assert abs(frequencies[0] - 0.7) < 0.03  # six standard deviations
    uniform = counts(sample(rng, 3, 10_000, 1), 3)[0] / 10_000
    assert np.abs(uniform - 1 / 3).max() < 0.03


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda rng: Interactions(np.ones((2, 3)), np.ones((2, 1))), ValueError, "f has shape"),
        (lambda rng: Interactions(np.ones((2, 2)), np.ones(2)), ValueError, "w has shape"),
        (lambda rng: Interactions(np.ones((2, 2), int), np.ones((2, 1))), TypeError, "f has dtype"),
        (lambda rng: random_interactions(rng, 0, 1), ValueError, "size = 0"),
        (lambda rng: random_interactions(rng, 2, 1).targets(np.array([0, 2])), ValueError, "symbols in 0..1"),
        (lambda rng: random_interactions(rng, 2, 1).targets(np.array([0.0])), TypeError, "x has dtype"),
        (lambda rng: counts(np.array([-1]), 2), ValueError, "symbols in 0..1"),
        (lambda rng: counts(np.zeros((2, 0), int), 2), ValueError, "no empty axis"),
        (lambda rng: sample(rng, 2, 0, 1), ValueError, "length = 0"),
        (lambda rng: sample(rng, 2, 1, 1, np.ones(3) / 3), ValueError, "probabilities has shape"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call(np.random.default_rng(0))
