"""What data can identify: ranks of counts, of tuples' counts, and how fast random data get there."""

from itertools import product

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.data import counts, sample
from papers.hyper_self_attention.interactions.layers import hyper_attention
from papers.hyper_self_attention.interactions.versatility import (
    deficiency_bound,
    second_moment,
    tuple_counts,
    versatility,
)
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close


def deficient_fraction(rng, size, length, count, trials, *, symbol=None, probabilities=None):
    """In what fraction of trials counts of `count` random sequences lack full column rank.

    With a `symbol`, only the sequences that hold it count: the rank of S_a.
    """
    s = counts(sample(rng, size, length, trials * count, probabilities), size).reshape(trials, count, size)
    if symbol is not None:
        s = s * (s[..., symbol] > 0)[..., None]
    return float((np.linalg.matrix_rank(s) < size).mean())


@given(draw.seeds, st.integers(1, 4), st.integers(1, 5), st.integers(1, 30))
def test_ranks_and_gap_are_those_of_the_count_matrices(seed, size, length, count):
    x = sample(np.random.default_rng(seed), size, length, count)
    s = counts(x, size)
    result = versatility(x, size)
    rows = [s[s[:, symbol] > 0] for symbol in range(size)]
    ranks = [np.linalg.matrix_rank(held) if len(held) else 0 for held in rows]
    assert result.ranks.tolist() == ranks
    assert result.versatile == (min(ranks) == size == result.columns)
    if result.versatile:
        smallest = min(np.linalg.svd(held, compute_uv=False)[-1] for held in rows)
        assert_close(np.array(result.squared_gap), np.array(smallest**2), 1e-9)  # the square loses digits
    else:
        assert result.squared_gap == 0


def test_distinct_entities_are_not_versatile():
    """A sequence that holds a symbol holds it once: a constant column, and a rank is missing (remark D.1)."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.permutation(6)[:3] for _ in range(400)])
    assert versatility(x, 6).ranks.tolist() == [5] * 6
    assert versatility(sample(rng, 6, 3, 400), 6).versatile


@given(draw.seeds, st.integers(1, 3), st.integers(1, 5), st.integers(1, 3))
def test_tuple_counts(seed, size, length, keys):
    x = np.random.default_rng(seed).integers(size, size=(1, 2, length))
    follows = {"ordered": lambda a, b: a <= b, "strict": lambda a, b: a < b, "all": lambda a, b: True}
    for order, before in follows.items():
        expected = np.zeros((1, 2) + (size,) * keys, int)
        for row, positions in product(range(2), product(range(length), repeat=keys)):
            if all(before(positions[n], positions[n + 1]) for n in range(keys - 1)):
                expected[(0, row, *x[0, row, list(positions)])] += 1
        assert_close(tuple_counts(x, size, keys, order), expected, 0)


@pytest.mark.parametrize("order", ["ordered", "strict"])
def test_hyper_attention_sees_tuples_by_their_counts(x64, order):
    """y_i = sum_ab C[x_i, a, b] Gamma[a, b] W[a, b] for one-hot embeddings (lemma G.8)."""
    rng = np.random.default_rng(0)
    c, w = rng.normal(size=(3, 3, 3)), rng.normal(size=(3, 3, 2))
    x = sample(rng, 3, 6, 4)
    y = jax.jit(hyper_attention, static_argnames="order")(np.eye(3)[x], c, w, order=order)
    expected = np.einsum("nlab,nab,abk->nlk", c[x], tuple_counts(x, 3, 2, order), w)
    assert_close(y, expected, FLOAT64)


@pytest.mark.parametrize("length", [3, 5, 8])
def test_pairs_are_identified_if_they_are_ordered(length):
    """Ranks of Z_a for three symbols: 9 of 9, and 6 of 9 where the order of a pair does not count."""
    x = sample(np.random.default_rng(0), 3, length, 1000)
    for order in ("ordered", "strict"):
        result = versatility(x, 3, keys=2, order=order)
        assert result.versatile
        assert result.columns == 9
        assert result.squared_gap > 1
    result = versatility(x, 3, keys=2, order="all")
    assert result.ranks.tolist() == [6] * 3
    assert not result.versatile


def test_counts_of_one_length_have_a_moment_but_no_covariance():
    """Theorem E.2 asks for a covariance that is positive: it never is; the second moment is."""
    p = np.array([0.5, 0.3, 0.2])
    everything = np.array(list(product(range(3), repeat=4)))
    weight, s = p[everything].prod(axis=1), counts(everything, 3).astype(float)
    moment = np.einsum("n,na,nb->ab", weight, s, s)
    assert_close(second_moment(3, 4, p), moment, FLOAT64)
    mean = weight @ s
    covariance = np.linalg.eigvalsh(moment - np.outer(mean, mean))
    assert abs(covariance[0]) < 1e-12 < 0.1 < covariance[1]
    assert np.linalg.eigvalsh(moment)[0] > 0.5
    assert np.linalg.matrix_rank(s) == 3
    assert np.linalg.matrix_rank(s - s.mean(axis=0)) == 2


def test_random_data_lack_ranks_exponentially_rarely():
    """Log-linear in the number of sequences, for all (theorem E.2) and for those that hold a symbol."""
    rng = np.random.default_rng(0)
    p, steps = np.array([0.6, 0.3, 0.1]), np.array([5, 10, 15, 20])
    for symbol in (None, 0):
        fractions = [
            deficient_fraction(rng, 3, 3, count, 2000, symbol=symbol, probabilities=p) for count in steps
        ]
        logs = np.log(fractions)
        slope, start = np.polyfit(steps, logs, 1)
        assert slope < -0.2
        assert np.abs(logs - slope * steps - start).max() < 0.4  # two events of the rarest fraction


def test_fractions_and_their_bound():
    """Two symbols, two positions: counts are (2, 0), (1, 1), (0, 2) with probabilities 1/4, 1/2, 1/4.

    The rank is 1 if all are the same; of those that hold the first symbol, if (2, 0) or (1, 1) is missing.
    """
    rng = np.random.default_rng(0)
    for count in (1, 2, 4, 8, 30):
        exact = {None: 0.5**count + 2 * 0.25**count, 0: 0.75**count + 0.5**count - 0.25**count}
        assert exact[None] <= deficiency_bound(2, 2, count)
        for symbol, probability in exact.items():
            fraction = deficient_fraction(rng, 2, 2, count, 2000, symbol=symbol)
            assert abs(fraction - probability) <= 5 * (probability * (1 - probability) / 2000) ** 0.5 + 1e-9
    assert deficiency_bound(2, 2, 1) == 1
    assert deficiency_bound(2, 2, 8) == pytest.approx(2 * np.exp(-2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: versatility(np.zeros(3, int), 2), "x.shape"),
        (lambda: tuple_counts(np.zeros(3, int), 2, 0), "keys = 0"),
        (lambda: tuple_counts(np.zeros(3, int), 2, 2, "causal"), "order = 'causal'"),
        (lambda: second_moment(2, 0), "length = 0"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
