"""Features of Taylor's polynomial: rank, error, and what the error does to masked attention."""

import functools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from tests.ops import oracles
from tests.tolerances import FLOAT32, FLOAT64, assert_close


@functools.cache
def features(degree, scale=None):
    return jax.jit(ops.polynomial_map(degree, scale).features)


def truncated(s, degree):
    return sum(s**m / math.factorial(m) for m in range(degree + 1))


@pytest.mark.parametrize(
    ("width", "degree"),
    [(3, 4), *(pytest.param(*case, marks=pytest.mark.release) for case in ((1, 0), (1, 5), (2, 1), (4, 2)))],
)
def test_one_feature_for_each_monomial(x64, width, degree):
    """Rank binomial(K + g, g), no less; products are the polynomial, as the similarity is."""
    phi = ops.polynomial_map(degree)
    size = math.comb(width + degree, degree)
    q, k = np.random.default_rng(0).uniform(-2, 2, size=(2, size + 3, width))
    mapped = [np.asarray(features(degree)(x)) for x in (q, k)]
    assert mapped[0].shape == (size + 3, size)
    assert phi.size(width) == ops.polynomial_size(width, degree) == size
    assert np.linalg.matrix_rank(mapped[0]) == size
    expected = truncated(q @ k.T / width, degree)
    assert_close(mapped[0] @ mapped[1].T, expected, FLOAT64)
    assert_close(phi.similarity(jax.device_put(q @ k.T), width), expected, FLOAT64)


def test_degree_two_is_the_map_of_based(x64):
    q, k = np.random.default_rng(0).normal(size=(2, 5, 4))
    expected = oracles.taylor_features(q) @ oracles.taylor_features(k).T
    mapped = [np.asarray(features(2, 4**-0.5)(x)) for x in (q, k)]
    assert_close(mapped[0] @ mapped[1].T, expected, FLOAT64)


@given(st.integers(0, 12), st.floats(0, 6))
def test_largest_error(degree, largest):
    """At the left end, and nowhere larger."""
    s = np.linspace(-largest, largest, 41)
    errors = np.abs(truncated(s, degree) * np.exp(-s) - 1)
    promised = ops.polynomial_error(degree, largest)
    assert promised == pytest.approx(errors[0], rel=1e-6, abs=1e-10)
    assert errors.max() <= promised * (1 + 1e-6) + 1e-10


@given(st.floats(1e-6, 1), st.floats(0, 5))
def test_smallest_degree(error, largest):
    degree = ops.polynomial_degree(error, largest)
    assert ops.polynomial_error(degree, largest) <= error
    assert degree == 0 or ops.polynomial_error(degree - 1, largest) > error


@functools.cache
def attention(degree):
    phi = ops.polynomial_map(degree).features
    return jax.jit(lambda q, k, v, mask: ops.masked_low_rank(phi(q), phi(k), v, mask))


def test_bfloat16_and_length_one():
    x = np.full((1, 1, 1, 2), 0.5, jax.numpy.bfloat16)
    mapped = features(2)(x)
    assert mapped.dtype == jax.numpy.bfloat16
    assert_close(mapped[0, 0, 0, :3].astype(np.float32), np.array([1, 8**-0.5, 8**-0.5]), 1e-2)
    assert_close(
        attention(2)(*[np.ones((1, 1, 1, 2), np.float32)] * 3, ops.CausalMask()),
        np.ones((1, 1, 1, 2)),
        FLOAT32,
    )


def test_errors_name_the_argument():
    for call, message in [
        (lambda: ops.polynomial_map(-1), "degree = -1"),
        (lambda: ops.polynomial_map(2, 0.0), r"scale = 0\.0"),
        (lambda: ops.polynomial_error(-1, 1.0), "degree = -1"),
        (lambda: ops.polynomial_error(1, -1.0), r"largest = -1\.0"),
        (lambda: ops.polynomial_degree(0.0, 1.0), r"error = 0\.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
