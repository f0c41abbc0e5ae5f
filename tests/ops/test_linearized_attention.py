"""Linearized attention against loops, its limits, and its gradients."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from pallas_kernels import interpreted
from tests.arrays import array, blank
from tests.marks import release_but
from tests.ops import oracles
from tests.tolerances import FLOAT32, FLOAT32_GRADIENT, FLOAT32_STATE, FLOAT64, assert_close

IDS = np.repeat([[0, 1], [3, 3]], [4, 9], axis=1).astype(np.int32)
MAPS = "map_q", "map_k", "mean_key", "log_factor"


def drawn(dtype=np.float64, scale=1.0):
    """Return q, k, v with 4 heads of queries and 2 of keys, and the maps."""
    generator = np.random.default_rng(0)
    shapes = [(2, 13, 4, 3), (2, 13, 2, 3), (2, 13, 2, 5), (4, 3, 2), (2, 3, 2), (2, 3), (4,)]
    arrays = [array(generator.normal(size=shape), dtype) for shape in shapes]
    return [scale * x for x in arrays[:3]], dict(zip(MAPS, arrays[3:], strict=True))


def by_hand(qkv, maps, left, ids, phi):
    map_q, map_k, mean_key, log_factor = (np.asarray(maps[name]) for name in MAPS)

    def weight(query, key, head):
        mean = mean_key[head // 2]
        features = phi(query @ map_q[head]) @ phi((key - mean) @ map_k[head // 2])
        return np.exp(0.3 * query @ mean + log_factor[head]) * features

    return oracles.window_and_older(*map(np.asarray, qkv), left, ids, weight, 0.3)


run = jax.jit(ops.linearized_attention, static_argnames=("left", "scale", "implementation", "feature_map"))


@pytest.mark.parametrize("left", release_but([3], [0, 3]))
def test_it_is_its_equation(left, x64):
    qkv, maps = drawn()
    packed = by_hand(qkv, maps, left, IDS, oracles.taylor_features)
    for implementation in ("xla", "reference"):
        how = {"segment_ids": array(IDS), "implementation": implementation}
        assert_close(run(*qkv, **maps, left=left, scale=0.3, **how), packed, FLOAT64)
    relu = ops.feature_map("relu")
    whole = run(*jax.tree.map(np.float32, qkv), **maps, left=left, scale=0.3, feature_map=relu)
    wanted = by_hand(qkv, maps, left, np.zeros((2, 13), int), lambda x: np.maximum(x, 1e-12))
    assert_close(whole, wanted, FLOAT32)


def test_the_kernel_returns_one_state_for_the_queries_of_a_group():
    qkv, maps = drawn(np.float32)
    state = blank(ops.init_linearized_state, 2, 3, 2, 3, 5, 6)
    how = {"left": 3, "initial_state": state, "return_state": True, "implementation": "pallas"}
    with interpreted():
        _, after = jax.eval_shape(functools.partial(ops.linearized_attention, **maps, **how), *qkv)
    assert after == jax.eval_shape(lambda: state)


@pytest.mark.slow
def test_the_kernel_of_older_tokens():
    """Values, states and gradients, in the interpreter."""
    qkv, maps = drawn(np.float32)
    state = blank(ops.init_linearized_state, 2, 3, 2, 3, 5, 6)
    how = {"left": 3, "scale": 0.3, "segment_ids": array(IDS), "initial_state": state, "return_state": True}

    def loss(implementation, qkv, maps):
        y, after = ops.linearized_attention(*qkv, **maps, **how, implementation=implementation)
        return jnp.sum(jnp.sin(y)) + jnp.sum(jnp.sin(after.sums.kv)), (y, after.sums)

    found = {}
    for name in ("pallas", "xla"):
        with interpreted():
            graded = jax.jit(jax.grad(functools.partial(loss, name), argnums=(0, 1), has_aux=True))
            found[name] = graded(qkv, maps)
    gradients, (y, sums) = found["pallas"]
    assert_close(y, by_hand(qkv, maps, 3, IDS, oracles.taylor_features), FLOAT32)
    assert_close(sums, found["xla"][1][1], FLOAT32_STATE)
    assert_close(gradients, found["xla"][0], FLOAT32_GRADIENT)


@pytest.mark.release
def test_a_window_of_the_whole_text_is_softmax_attention():
    qkv, maps = drawn(np.float32)
    assert_close(run(*qkv, **maps, left=12), ops.softmax_attention(*qkv), FLOAT32)


@pytest.mark.release
def test_features_of_exact_scores_give_softmax_attention():
    """One channel a head, and scores near 0: Taylor's map is exp up to s^3 / 6."""
    (q, k, v), _ = drawn(np.float32, 0.1)
    q, k, one = q[..., :1], k[..., :1], jnp.ones((4, 1, 1))
    far = run(q, k, v, one, one[:2], left=1)
    assert_close(far, ops.softmax_attention(q, k, v), 1e-5)


def test_the_sums_are_of_tokens_that_left_the_window():
    (q, k, v), maps = drawn(np.float32)
    state = blank(ops.init_linearized_state, 2, 3, 2, 3, 5, 6)
    _, state = ops.linearized_attention(q, k, v, **maps, left=3, initial_state=state, return_state=True)
    mapped = np.einsum("bngk,gkm->bgnm", (k - maps["mean_key"])[:, : 13 - 4], maps["map_k"])
    features = oracles.symmetric_taylor_features(mapped)
    assert_close(state.sums.k, features.sum(2), FLOAT32_STATE)
    values = np.einsum("bgnf,bngv->bgfv", features, v[:, : 13 - 4])
    assert_close(state.sums.kv[..., :-1], values, FLOAT32_STATE)


@pytest.mark.slow
def test_long_queries_and_keys_stay_finite():
    def total(qkv, maps):
        return jnp.sum(ops.linearized_attention(*qkv, **maps, left=1))

    differentiate = jax.jit(jax.value_and_grad(total, (0, 1)))
    for scale in (1e-3, 30.0, 1e3):
        chex.assert_tree_all_finite(differentiate(*drawn(jnp.bfloat16, scale)))


def test_nan_at_padding_keeps_out_of_the_gradients_of_the_maps():
    qkv, maps = drawn(np.float32)
    broken, mask = [x.at[:, 9:].set(np.nan) for x in qkv], array(np.arange(13) < [[9], [9]])

    @jax.jit
    @jax.grad
    def differentiate(maps, qkv):
        y = ops.linearized_attention(*qkv, **maps, left=1, mask=mask)
        return jnp.where(mask[..., None, None], y, 0).sum()

    assert_close(differentiate(maps, broken), differentiate(maps, qkv), 0)
