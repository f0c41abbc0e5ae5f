"""The bound on recall, linear states of random keys, and the curves beside measured points."""

from itertools import permutations, product
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.experiments.panels import Line
from papers.based.bounds.capacity import expected_recall, simulated_recall
from papers.based.bounds.capacity_curves import above, bound, curves, pairs_and_values, published_curves
from papers.based.bounds.linear_state import delta_rule
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


@given(pairs_, values_)
def test_guessing_is_free_and_knowing_all_takes_all_bits(pairs, values):
    assert best_recall(0, pairs, values) == pytest.approx(1 / values, abs=1e-6)
    assert bits_needed(1.0, pairs, values) == pytest.approx(pairs * log2(values))


def test_different_values_have_fewer_arrangements():
    arrangements = len(list(permutations(range(5), 3)))
    assert bits_needed(1.0, 3, 5, distinct=True) == pytest.approx(log2(arrangements))


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


@given(st.integers(1, 40), st.integers(3, 40), st.integers(3, 40))
def test_more_state_recalls_more(pairs, d_k, d_v):
    recall = expected_recall(pairs, (d_k, d_v), 64)
    assert 0 <= recall <= expected_recall(pairs, (2 * d_k, 2 * d_v), 64) + 1e-3
    assert recall >= expected_recall(pairs + 8, (d_k, d_v), 64) - 1e-3


def test_the_delta_rule_can_be_tried_too():
    rng = np.random.default_rng(0)
    recalls = [simulated_recall(rng, 16, (width, 16), 64, trials=8, write=delta_rule) for width in (4, 64)]
    assert recalls[0] < 0.5 < recalls[1]


def test_no_measured_point_is_above_the_bound():
    lines = curves(ROOT / "results" / "mqar" / "tradeoff")
    assert {"Based", "Sliding window", "Attention"} < {line.family for line in lines}
    assert above(lines, "cpu") == []


def test_no_published_point_is_above_the_bound():
    lines = published_curves()
    assert sum(line.published for line in lines) >= 10
    assert above(lines, "paper") == []


def test_a_point_above_the_bound_is_found():
    pairs, values = pairs_and_values("cpu")
    assert (pairs, values) == ([4, 8, 16, 32, 64], 512)
    size = 30.0
    fine, wrong = bound(size, "cpu") - 0.01, bound(size, "cpu") + 0.01
    assert above([Line("x", [(size, fine), (size, wrong)])], "cpu") == [("x", size, wrong)]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: bits_needed(0.5, 0, 2), "pairs = 0"),
        (lambda: bits_needed(0.5, 1, 1), "values = 1"),
        (lambda: bits_needed(0.4, 1, 2), "recall = 0.4"),
        (lambda: bits_needed(1.0, 3, 2, distinct=True), "pairs = 3"),
        (lambda: best_recall(-1, 1, 2), "bits = -1"),
        (lambda: expected_recall(0, (4, 4), 2), "pairs = 0"),
        (lambda: expected_recall(1, (2, 4), 2), r"shape = \(2, 4\)"),
        (lambda: simulated_recall(np.random.default_rng(0), 3, (4, 4), 2), "pairs = 3"),
        (lambda: curves(ROOT), "directory = "),
        (lambda: bound(1, "huge"), "scale = 'huge'"),
    ],
)
def test_arguments_out_of_range_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
