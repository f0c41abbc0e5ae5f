"""bfloat16 sums over thousands of tokens or hundreds of chunks: they stop growing unless they are float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops import attention_to_keys, selection
from based_jax.ops.feature_maps import all_poly_map
from tests.tolerances import BFLOAT16, FLOAT32, assert_close

RNG = np.random.default_rng(0)
LENGTH, CHUNK = 2048, 8


def positive(*shape):
    return RNG.uniform(0.5, 1, size=shape)


X, Q, K = positive(1, LENGTH, 4), positive(1, LENGTH, 1, 4), positive(1, LENGTH, 1, 4)
K[:, 0] *= 5  # queries attend most to the first token
WEIGHTS = positive(6, 4), positive(6, 4)
TOLERANCE = 2 * BFLOAT16  # weights and features of chunks are rounded, and so are their products


def skip(D):
    x = jnp.asarray(X, D.dtype)
    A, B = -jnp.ones((4, 2), D.dtype), jnp.ones((1, LENGTH, 2), D.dtype)
    return ops.selective_scan(x, x, A, B, B, D, chunk_size=CHUNK)


def maps(linear, squares):
    q, k = (jnp.asarray(x, linear.dtype) for x in (Q, K))
    made = all_poly_map(linear, squares)
    return ops.linear_attention(q, k, q, feature_map=made, chunk_size=CHUNK)


def full(v):
    q, k = (jnp.asarray(x, v.dtype) for x in (Q, K))
    return ops.softmax_attention(q, k, v, scale=1.0, implementation="xla")


def products(v):
    q, k = (jnp.asarray(x, v.dtype) for x in (Q, K))
    return ops.hyper_feature_attention([q, q], [k, k], v, scale=0.1, chunk_size=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "arrays"),
    [(skip, (positive(4),)), (maps, WEIGHTS), (full, (Q,)), (products, (Q,))],
)
def test_gradients_of_what_all_chunks_read(function, arrays, monkeypatch):
    monkeypatch.setattr(attention_to_keys, "QUERY_BLOCK", CHUNK)
    narrow = [jnp.asarray(x, "bfloat16") for x in arrays]

    @jax.jit
    def gradients(*arrays):
        return jax.grad(lambda *x: function(*x).astype("float32").sum(), range(len(arrays)))(*arrays)

    found, expected = gradients(*narrow), gradients(*(x.astype("float32") for x in narrow))
    assert_close(found, expected, TOLERANCE)


@pytest.mark.release
def test_sums_over_a_segment():
    @jax.jit
    def sums(ones):
        positions, _ = ops.advance(None, 1, 4096)
        log_sum = selection.running_log_sum(ones, jnp.full(1, selection.NOTHING), positions)[1]
        return selection.segment_sum(ones, positions), log_sum, selection.segment_softmax(ones, positions)

    total, log_sum, weights = sums(np.ones((1, 4096), "bfloat16"))
    assert total[0, 0] == 4096
    assert_close(log_sum, np.full(1, 1 + np.log(4096)), FLOAT32)
    assert_close(weights, np.full((1, 4096), 2.0**-12), 0)


def test_lags_of_narrow_rows():
    rows = jnp.asarray(np.tile([1.0, 0.0, 0.0, 0.0], 16)[None, :, None], "bfloat16")
    lags, _ = selection.strongest_lags(rows, 1)
    assert lags.tolist() == [[4]]


def test_narrow_queries_are_scaled_in_wide_numbers():
    """1 / sqrt(K) is no power of two."""
    q, k = np.asarray(Q[:, :9, :, :3], "bfloat16"), K[:, :9, :, :3].astype(np.float32)
    for attend in (
        lambda q: ops.nystrom_attention(q, k, k, num_landmarks=3),
        lambda q: ops.linear_hyper_attention(q, (k, k), (k, k)),
    ):
        np.testing.assert_array_equal(attend(q), attend(q.astype(np.float32)))


@pytest.mark.release
def test_means_of_landmarks():
    k = np.asarray(K[:, :256], "bfloat16")

    @jax.jit
    def means(k):
        state = ops.init_landmark_state(1, 2, 128, 1, 4, 4, "bfloat16")
        call = {"tokens_per_landmark": 128, "initial_state": state, "return_state": True}
        return ops.landmark_attention(k, k, k, **call)[1].keys

    assert_close(means(k), np.asarray(k, float).reshape(1, 2, 128, 1, 4).mean(axis=2), BFLOAT16)
