"""Butterfly factors, matrices and their products, by row and across rows; transforms among them."""

from functools import reduce

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.simulations.butterfly import Factor, butterfly, kaleidoscope

SEEDS = st.integers(0, 2**32 - 1)


def matrix(factor):
    """Written out block by block, [D1, D2; D3, D4]."""
    k, n = factor.size, len(factor.own)
    dense = np.zeros((n, n))
    for start in range(0, n, k):
        for i in range(start, start + k // 2):
            j = i + k // 2
            dense[i, i], dense[i, j] = factor.own[i], factor.other[i]
            dense[j, i], dense[j, j] = factor.other[j], factor.own[j]
    return dense


def product(factors, x):
    return reduce(lambda x, factor: matrix(factor) @ x, factors, x)


@given(st.integers(1, 4), st.integers(0, 4), SEEDS)
def test_a_factor_and_its_transpose_are_their_matrices(levels, block, seed):
    rng = np.random.default_rng(seed)
    length = 2**levels
    factor = Factor(2 ** min(block + 1, levels), *rng.normal(size=(2, length)))
    x = rng.uniform(-1, 1, size=length)
    np.testing.assert_allclose(factor(x), matrix(factor) @ x, rtol=0, atol=EXACT)
    np.testing.assert_array_equal(matrix(factor.transposed), matrix(factor).T)


@given(st.integers(0, 1), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2), SEEDS)
def test_a_corner_of_a_larger_product(log_expansion, log_rows, log_width, members, seed):
    """(BB*)^w_e: the vector is padded to e times its length, and the first entries are read."""
    rng = np.random.default_rng(seed)
    rows, width, expansion = 2**log_rows, 2**log_width, 2**log_expansion
    factors = kaleidoscope(rng, expansion * rows * width, members)
    u = rng.uniform(-1, 1, size=(rows, width))
    stack = butterfly((expansion * rows, 3 * width), factors)
    x = np.pad(u.reshape(-1), (0, (expansion - 1) * u.size))
    np.testing.assert_allclose(stack(u).reshape(-1), product(factors, x)[: u.size], rtol=0, atol=EXACT)
    levels = 2 * (log_expansion + log_rows) + log_width
    assert stack.account.layers == 2 * members * levels + 1
