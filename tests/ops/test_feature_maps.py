"""The Taylor maps: sizes, the polynomial that they factor, and the two layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from based_jax import ops
from tests.ops import draw, oracles
from tests.tolerances import FLOAT64, assert_close


@pytest.mark.parametrize(
    ("width", "symmetric", "full"), [(8, 45, 73), (16, 153, 273), (24, 325, 601), (32, 561, 1057)]
)
def test_published_sizes(width, symmetric, full):
    assert ops.symmetric_taylor_size(width) == ops.TAYLOR.size(width) == symmetric
    assert ops.taylor_size(width) == full
    x = jax.ShapeDtypeStruct((width,), jnp.float32)
    assert jax.eval_shape(ops.symmetric_taylor_features, x).shape == (symmetric,)
    assert jax.eval_shape(ops.taylor_features, x).shape == (full,)


@jax.jit
def everything(q, k):
    """One small program per width."""
    symmetric = ops.symmetric_taylor_features(q)
    return {
        "full": ops.taylor_features(q),
        "symmetric": symmetric,
        "converted": ops.symmetric_to_full(symmetric, q.shape[-1]),
        "converted sum": ops.symmetric_to_full(symmetric.sum(0), q.shape[-1]),
        "products": [
            features(q) @ features(k).T
            for features in (ops.taylor_features, ops.symmetric_taylor_features, ops.TAYLOR.features)
        ],
        "similarity": ops.TAYLOR.similarity(q @ k.T, q.shape[-1]),
    }


@pytest.mark.parametrize("width", range(1, 9))
def test_features_factor_the_polynomial_in_both_layouts(width):
    """phi(q) . phi(k) = 1 + s + s^2 / 2 >= 1/2 with s = q . k / sqrt(K); the layouts are the papers'."""

    @given(draw.seeds)
    def law(seed):
        q, k = np.random.default_rng(seed).normal(size=(2, 4, width))
        s = q @ k.T / np.sqrt(width)
        polynomial = 1 + s + s**2 / 2
        assert polynomial.min() >= 0.5
        full = oracles.taylor_features(q)
        with jax.enable_x64(True):
            got = everything(jnp.asarray(q), jnp.asarray(k))
        expected = {
            "full": full,
            "symmetric": oracles.symmetric_taylor_features(q),
            "converted": full,
            "converted sum": full.sum(0),  # the conversion is linear: sums, such as states, convert too
            "products": [polynomial] * 3,
            "similarity": polynomial,
        }
        assert_close(got, expected, FLOAT64)

    law()


def test_identity():
    x = jnp.arange(6.0).reshape(2, 3)
    assert ops.IDENTITY.features(x) is x
    assert ops.IDENTITY.similarity(x, 3) is x
    assert ops.IDENTITY.size(7) == 7


def test_wrong_width(unchecked):
    with pytest.raises(ValueError, match=r"features has shape \(2, 153\): expected \(any, 45\)"):
        ops.symmetric_to_full(jnp.ones((2, 153)), 8)
