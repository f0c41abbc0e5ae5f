"""Butterfly factors, matrices and their products, by row and across rows; transforms among them."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.simulations.butterfly import (
    Factor,
    butterfly,
    butterfly_matrix,
    fourier_factors,
    kaleidoscope,
)

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


def layers_of(factors, width):
    return sum(1 if factor.size <= width else 2 for factor in factors) + 1


@given(st.integers(1, 4), st.integers(0, 4), SEEDS)
def test_a_factor_and_its_transpose_are_their_matrices(levels, block, seed):
    rng = np.random.default_rng(seed)
    length = 2**levels
    factor = Factor(2 ** min(block + 1, levels), *rng.normal(size=(2, length)))
    x = rng.uniform(-1, 1, size=length)
    np.testing.assert_allclose(factor(x), matrix(factor) @ x, rtol=0, atol=EXACT)
    np.testing.assert_array_equal(matrix(factor.transposed), matrix(factor).T)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), SEEDS)
def test_a_butterfly_matrix(log_rows, log_width, more, seed):
    rng = np.random.default_rng(seed)
    rows, width = 2**log_rows, 2**log_width
    factors = butterfly_matrix(rng, rows * width)
    u = rng.uniform(-1, 1, size=(rows, width))
    stack = butterfly((rows + more, 3 * width), factors)
    expected = product(factors, u.reshape(-1))
    np.testing.assert_allclose(stack(u).reshape(-1), expected, rtol=0, atol=EXACT)
    assert stack.account.layers == 2 * log_rows + log_width + 1 == layers_of(factors, width)


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


@pytest.mark.parametrize("rows", [1, 4, 32])
def test_the_fourier_transform(rows):
    rng = np.random.default_rng(rows)
    points, bits = 16, 4
    z = rng.uniform(-1, 1, size=points) + 1j * rng.uniform(-1, 1, size=points)
    reverse = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(points)]
    u = z[reverse].view(np.float64).reshape(rows, -1)
    stack = butterfly((rows, 3 * u.shape[1]), fourier_factors(points))
    y = np.ascontiguousarray(stack(u)).reshape(-1).view(np.complex128)
    np.testing.assert_allclose(y, np.fft.fft(z), rtol=0, atol=EXACT)


def test_what_does_not_fit_is_named():
    ones = np.ones(4)
    with pytest.raises(ValueError, match="size = 3: expected a power of 2"):
        Factor(3, ones, ones)
    with pytest.raises(ValueError, match="the length of own = 4: expected a multiple of size = 8"):
        Factor(8, ones, ones)
    with pytest.raises(ValueError, match=r"other has shape \(2,\): expected \(4,\)"):
        Factor(2, ones, ones[:2])
    factor = Factor(2, ones, ones)
    for width in (4, 9):
        with pytest.raises(ValueError, match=f"the inner width = {width}: expected 3 times a power of 2"):
            butterfly((4, width), [factor])
    with pytest.raises(ValueError, match=r"shape = \(1, 6\): expected at least the 2 rows of a factor"):
        butterfly((1, 6), [factor])
    with pytest.raises(ValueError, match="the length of a factor = 4: expected a multiple of the width = 8"):
        butterfly((4, 24), [factor])
