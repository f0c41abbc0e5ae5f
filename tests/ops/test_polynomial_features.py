"""Features of Taylor's polynomial: rank, error, and what the error does to masked attention."""

import functools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from tests.ops import draw, oracles
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


@pytest.mark.parametrize(("degree", "rank", "found"), [(4, 35, 1.5e-3), (6, 84, 2.6e-5)])
def test_errors_in_three_dimensions(x64, degree, rank, found):
    """Entries within [-1, 1]: of 64 x 64 random pairs the worst, and of all that there are."""
    q, k = np.random.default_rng(9).uniform(-1, 1, size=(2, 64, 3))
    mapped = [np.asarray(features(degree)(x)) for x in (q, k)]
    assert mapped[0].shape[-1] == rank
    error = np.abs(mapped[0] @ mapped[1].T / np.exp(q @ k.T / 3) - 1).max()
    assert found / 3 < error < 3 * found
    assert error <= ops.polynomial_error(degree, 1.0)


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


def softmax(q, k, v, dense):
    weights = np.where(dense, np.exp(np.einsum("bihk,bjhk->bhij", q, k) / q.shape[-1]), 0)
    return np.einsum("bhij,bjhv->bihv", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize(
    ("degree", "mask"), [pytest.param(4, "block", marks=pytest.mark.release), (6, "band")]
)
def test_attention_within_the_bound(degree, mask):
    """Theorem 6.5: 4 eps max|v|, eps < 0.1, for masks of LongLoRA."""
    mask = ops.band_mask(11, 4) if mask == "band" else ops.row_change_mask(ops.block_mask(11, 4, shift=2))
    dense = np.asarray(mask.dense(11))

    @given(draw.seeds)
    def law(seed):
        rng = np.random.default_rng(seed)
        q, k = rng.uniform(-1, 1, size=(2, 1, 11, 2, 3))
        v = rng.normal(size=(1, 11, 2, 2))
        with jax.enable_x64(True):
            y = np.asarray(attention(degree)(q, k, v, mask))
        error = np.abs(y - softmax(q, k, v, dense)).max()
        assert 0 < error <= 4 * ops.polynomial_error(degree, 1.0) * np.abs(v).max()

    law()


@given(draw.seeds, st.floats(1e-6, 0.0999))
def test_entries_within_eps_put_outputs_within_four_eps(seed, eps):
    """Lemma D.6, for the worst entries too; D.5, |a - b| <= 2 eps min(a, b); D.2, |G v| <= |G|_1 max|v|."""
    rng = np.random.default_rng(seed)
    a, v = np.exp(rng.normal(size=(6, 8))), rng.choice([-1.0, 1.0], size=(8, 3))
    b = a * (1 + eps * np.where(rng.random(a.shape) < 0.5, rng.uniform(-1, 1, a.shape), np.sign(v[:, 0])))
    assert np.all(np.abs(a - b) <= 2 * eps * np.minimum(a, b) * (1 + 1e-9))
    assert np.abs(a @ v).sum(axis=0).max() <= np.abs(a).sum() * np.abs(v).max()
    y, other = (x @ v / x.sum(axis=1, keepdims=True) for x in (a, b))
    assert np.abs(y - other).max() <= 4 * eps * np.abs(v).max()


def test_rotary_comes_first(x64):
    """Rotated queries and keys are queries and keys (section 7): scores by the distance."""
    rng = np.random.default_rng(0)
    q, k, v = rng.uniform(-1, 1, size=(3, 1, 7, 1, 2)) / 2
    positions = np.arange(7)[None]
    turned = [np.asarray(jax.jit(functools.partial(ops.rotary, dim=2))(x, positions)) for x in (q, k)]
    y = attention(6)(*turned, v, ops.CausalMask())
    expected = softmax(*(oracles.rotary(x, positions, 2, 10000.0, False) for x in (q, k)), v, np.tri(7) > 0)
    assert_close(y, expected, 4 * ops.polynomial_error(6, 0.25))
    causal = jax.jit(functools.partial(ops.linear_attention, feature_map=ops.polynomial_map(6)))(*turned, v)
    assert_close(y, causal, FLOAT64)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.polynomial_map(-1), "degree = -1"),
        (lambda: ops.polynomial_map(2, 0.0), r"scale = 0\.0"),
        (lambda: ops.polynomial_error(-1, 1.0), "degree = -1"),
        (lambda: ops.polynomial_error(1, -1.0), r"largest = -1\.0"),
        (lambda: ops.polynomial_degree(0.0, 1.0), r"error = 0\.0"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
