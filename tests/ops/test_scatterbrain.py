"""ScatterBrain's causal form against loops, and what its features estimate."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.arrays import array
from tests.ops import oracles
from tests.tolerances import FLOAT32, FLOAT64, assert_close

IDS = np.repeat([[0, 1], [3, 3]], [4, 9], axis=1).astype(np.int32)


def drawn(dtype=np.float64, scale=1.0):
    generator = np.random.default_rng(0)
    arrays = [scale * generator.normal(size=(2, 13, 2, 3)) for _ in range(3)]
    return [array(x, dtype) for x in (*arrays, generator.normal(size=(4, 3)))]


def by_hand(q, k, v, directions, left, ids):
    def phi(x):
        x = x / 3**0.25
        along = np.concatenate([directions @ x, -directions @ x])
        return np.exp(along - x @ x / 2) / np.sqrt(len(along))

    return oracles.window_and_older(q, k, v, left, ids, lambda q, k, head: phi(q) @ phi(k))


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 3])
def test_the_causal_form_is_its_equation(left, x64):
    arrays = drawn()
    run = jax.jit(ops.scatterbrain_attention, static_argnames=("left", "implementation"))
    numbers = [np.asarray(x) for x in arrays]
    packed = by_hand(*numbers, left, IDS)
    for implementation in ("xla", "reference"):
        y = run(*arrays, left=left, segment_ids=array(IDS), implementation=implementation)
        assert_close(y, packed, FLOAT64)
    whole = run(*(x.astype(np.float32) for x in numbers), left=left)
    assert_close(whole, by_hand(*numbers, left, np.zeros((2, 13), int)), FLOAT32)


def test_directions_are_orthogonal_with_gaussian_lengths():
    rows = np.asarray(ops.gaussian_features(jax.random.key(0), (400, 8)))
    products = rows[:8] @ rows[:8].T
    assert_close(products, np.diag(np.diag(products)), 1e-5)
    lengths = np.square(rows).sum(-1)  # chi-square of 8 degrees: mean 8, variance 16
    assert abs(lengths.mean() - 8) < 3 * 4 / 20
    assert abs(lengths.var() - 16) < 8


@pytest.mark.slow
def test_long_queries_and_keys_stay_finite():
    @jax.jit
    def run(q, k, v, directions):
        return jnp.sum(ops.scatterbrain_attention(q, k, v, directions, left=1))

    differentiate = jax.jit(jax.value_and_grad(run, (0, 1, 2)))
    for scale in (1e-3, 30.0, 1e3):
        chex.assert_tree_all_finite(differentiate(*drawn(jnp.bfloat16, scale)))


def test_nan_at_padding_keeps_out_of_the_gradient_of_the_directions():
    *qkv, directions = drawn(np.float32)
    broken, mask = [x.at[:, 9:].set(np.nan) for x in qkv], array(np.arange(13) < [[9], [9]])
    run = jax.jit(jax.grad(lambda *x: ops.scatterbrain_attention(*x, left=1, mask=mask).sum(), argnums=3))
    assert_close(run(*broken, directions), run(*qkv, directions), 0)


def test_zoologys_form_leaks():
    """A later key along a direction has the largest feature of all."""
    q, k, v, directions = drawn(np.float32)
    directions, later = 2 * np.asarray(directions), np.array(k)
    later[:, 12] = 3**0.25 * directions[0]
    run = jax.jit(ops.zoology_scatterbrain, static_argnames="left")
    moved = np.abs(np.asarray(run(q, later, v, directions, left=2)) - run(q, k, v, directions, left=2))
    assert moved[:, :12].max() > 1e-6
