"""What data can identify: ranks of counts, of tuples' counts, and how fast random data get there."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.data import counts, sample
from papers.hyper_self_attention.interactions.layers import hyper_attention
from papers.hyper_self_attention.interactions.versatility import tuple_counts, versatility
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close


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


@pytest.mark.parametrize("order", ["ordered", "strict"])
def test_hyper_attention_sees_tuples_by_their_counts(x64, order):
    """y_i = sum_ab C[x_i, a, b] Gamma[a, b] W[a, b] for one-hot embeddings (lemma G.8)."""
    rng = np.random.default_rng(0)
    c, w = rng.normal(size=(3, 3, 3)), rng.normal(size=(3, 3, 2))
    x = sample(rng, 3, 6, 4)
    y = jax.jit(hyper_attention, static_argnames="order")(np.eye(3)[x], c, w, order=order)
    expected = np.einsum("nlab,nab,abk->nlk", c[x], tuple_counts(x, 3, 2, order), w)
    assert_close(y, expected, FLOAT64)
