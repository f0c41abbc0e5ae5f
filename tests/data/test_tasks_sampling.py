"""Exact integers: scaled words against Python's own, samples against the law they are drawn from."""

import itertools
from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from based_jax.data.tasks.sampling import power_law, scaled, successive, words

SIGNIFICANCE = 1e-4

word_pairs = npst.arrays(np.uint32, (2, 64), elements=st.integers(0, 2**32 - 1), fill=st.nothing())
bounds = npst.arrays(np.uint32, (64,), elements=st.integers(1, 2**31 - 1), fill=st.nothing())


@given(word_pairs, bounds)
def test_scaled_is_the_exact_product(pairs, bounds):
    exact = [
        int(bound) * ((int(high) << 32) + int(low)) >> 64
        for high, low, bound in zip(*pairs, bounds, strict=True)
    ]
    assert jax.jit(scaled)(pairs, bounds).tolist() == exact


@pytest.mark.parametrize("weights", [(5, 3, 1, 1), (1, 1, 1, 1, 1), (1, 1_000_000, 1)], ids=str)
def test_ordered_samples_have_the_law_of_successive_sampling(weights):
    """Every ordered sample: the product of weight over the sum of the weights that were left."""
    count, rows = 3, 60_000
    drawn = np.asarray(successive(words(jax.random.key(1), count, rows), np.array(weights)))
    samples = list(itertools.permutations(range(len(weights)), count))
    expected = []
    for sample in samples:
        left, chance = sum(weights), Fraction(1)
        for item in sample:
            chance *= Fraction(weights[item], left)
            left -= weights[item]
        expected.append(float(chance * rows))
    positions = {sample: index for index, sample in enumerate(samples)}
    observed = np.bincount([positions[tuple(row)] for row in drawn.tolist()], minlength=len(samples))
    likely = np.array(expected) > 5  # the rest is too rare for a chi-square, and then hardly drawn
    assert observed[~likely].sum() <= 5
    rare = max(sum(expected) - np.array(expected)[likely].sum(), 1e-9)
    chance = stats.chisquare(
        [*observed[likely], observed[~likely].sum()], [*np.array(expected)[likely], rare]
    ).pvalue
    assert chance > SIGNIFICANCE


def test_power_law():
    """The papers' first-slot probabilities, by length and pairs."""
    for length, pairs, first in ((64, 4, 0.251), (128, 8, 0.213), (256, 16, 0.185), (1024, 256, 0.159)):
        weights = power_law((length - 2 * pairs) // 2, 0.01)
        assert weights[0] / weights.sum() == pytest.approx(first, abs=6e-4)
    assert np.ptp(power_law(100, 1.0)) == 0
    for slots, power in ((1, 0.01), (1 << 20, 0.01), (1 << 20, 30.0)):
        weights = power_law(slots, power)
        assert weights.min() >= 1
        assert weights.sum() < 2**31
