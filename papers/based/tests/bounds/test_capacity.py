"""The bound on recall, linear states of random keys, and the curves beside measured points."""

from itertools import product
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.plot import Line
from papers.based.bounds.capacity import expected_recall, simulated_recall
from papers.based.bounds.capacity_curves import above, bound, curves, pairs_and_values
from papers.based.bounds.recall_bound import best_recall, bits_needed, table_recall
from papers.check import EXACT
from tests.floors import ROOT

pairs_ = st.integers(1, 50)
values_ = st.integers(2, 1000)


@given(pairs_, values_, st.floats(0, 1), st.booleans())
def test_the_best_recall_takes_just_these_bits(pairs, values, share, distinct):
    values = max(values, pairs) if distinct else values
    most = bits_needed(1.0, pairs, values, distinct)
    recall = best_recall(share * most, pairs, values, distinct)
    assert bits_needed(recall, pairs, values, distinct) == pytest.approx(share * most, abs=1e-6 * (1 + most))


@pytest.mark.parametrize(("pairs", "values", "states"), [(2, 2, 2), (2, 2, 3), (3, 2, 2), (2, 3, 2)])
def test_no_model_is_above_the_bound(pairs, values, states):
    """All ways to write every string into so few states; each read by the most frequent value."""
    strings = np.array(list(product(range(values), repeat=pairs)))
    best = 0.0
    for written in product(range(states), repeat=len(strings)):
        counts = np.zeros((states, pairs, values))
        for string, state in zip(strings, written, strict=True):
            counts[state, np.arange(pairs), string] += 1
        best = max(best, counts.max(axis=2).sum() / strings.size)
    assert 1 / values < best <= best_recall(log2(states), pairs, values)


@given(pairs_, values_, st.floats(0, 2))
def test_a_table_is_below_the_bound(pairs, values, share):
    bits = share * pairs * log2(values)
    assert table_recall(bits, pairs, values) <= best_recall(bits, pairs, values) + EXACT


@pytest.mark.parametrize(
    ("pairs", "shape", "values"),
    [
        (1, (3, 3), 256),
        (8, (8, 32), 256),
        (32, (16, 32), 256),
        (64, (32, 64), 256),
        (32, (8, 64), 32),
        (256, (64, 16), 256),
    ],
)
def test_the_formula_is_near_the_trials(pairs, shape, values):
    """The last two have no values but the stored ones."""
    rng = np.random.default_rng(0)
    measured = simulated_recall(rng, pairs, shape, values, trials=max(8, 1024 // pairs))
    assert abs(expected_recall(pairs, shape, values) - measured) <= 0.07


def test_no_measured_point_is_above_the_bound():
    lines = curves(ROOT / "results" / "mqar" / "tradeoff")
    assert {"Based", "Sliding window", "Attention"} < {line.family for line in lines}
    assert above(lines, "cpu") == []


def test_a_point_above_the_bound_is_found():
    pairs, values = pairs_and_values("cpu")
    assert (pairs, values) == ([4, 8, 16, 32, 64], 512)
    size = 30.0
    fine, wrong = bound(size, "cpu") - 0.01, bound(size, "cpu") + 0.01
    assert above([Line("x", [(size, fine), (size, wrong)])], "cpu") == [("x", size, wrong)]
