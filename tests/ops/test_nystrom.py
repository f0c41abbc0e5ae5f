"""Attention through landmarks: Zoology's form, and the causal one against loops."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.testing.laws import QUICKLY
from tests.arrays import array
from tests.ops import oracles
from tests.tolerances import FLOAT32, FLOAT64, assert_close

IDS = np.repeat([[0, 1], [3, 3]], [4, 9], axis=1).astype(np.int32)


def drawn(dtype=np.float64, length=13, scale=1.0):
    generator = np.random.default_rng(0)
    return [array(scale * generator.normal(size=(2, length, 2, 3)), dtype) for _ in range(3)]


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def landmarks_by_hand(q, k, v, size, ids):
    """The causal form, query by query."""
    y = np.zeros(v.shape)
    for row in range(len(q)):
        starts = oracles.segment_starts(ids[row])
        for head in range(q.shape[2]):
            for i in range(q.shape[1]):
                own = i - (i - starts[i]) % size
                scores, values = [], []
                for begin in range(starts[i], own, size):
                    part = slice(begin, begin + size)
                    query, keys = q[row, part, head].mean(0), k[row, part, head]
                    readout = softmax(keys @ query / np.sqrt(3)) @ v[row, part, head]
                    scores.append(q[row, i, head] @ keys.mean(0) / np.sqrt(3) + np.log(size))
                    values.append(readout)
                for j in range(own, i + 1):
                    scores.append(q[row, i, head] @ k[row, j, head] / np.sqrt(3))
                    values.append(v[row, j, head])
                y[row, i, head] = softmax(np.array(scores)) @ np.array(values)
    return y


@pytest.mark.parametrize(
    ("implementation", "dtype", "ids"),
    [
        ("xla", np.float64, IDS),
        *(
            pytest.param(*case, None, marks=pytest.mark.slow)
            for case in (("reference", np.float64), ("xla", np.float32))
        ),
    ],
)
def test_the_causal_form_is_its_equation(implementation, dtype, ids, x64):
    arrays, size = [np.asarray(x) for x in drawn()], 3
    run = jax.jit(ops.landmark_attention, static_argnames=("tokens_per_landmark", "implementation"))
    y = run(
        *(x.astype(dtype) for x in arrays),
        tokens_per_landmark=size,
        implementation=implementation,
        segment_ids=ids,
    )
    expected = landmarks_by_hand(*arrays, size, np.zeros((2, 13), int) if ids is None else ids)
    assert_close(y, expected, FLOAT64 if dtype == np.float64 else FLOAT32)


@pytest.mark.slow
def test_gradients_of_a_row_that_ends_after_a_chunk(x64):
    """Those of a row alone are those of the same row with padding, which has none."""
    arrays, weights, size = drawn(length=5), drawn(length=5)[0], 2

    def loss(arrays, mask):
        y = ops.landmark_attention(*arrays, tokens_per_landmark=size, mask=mask)
        return jnp.sum(jnp.where(mask[..., None, None], y * weights[:, : y.shape[1]], 0))

    gradients = jax.jit(jax.grad(loss), compiler_options=QUICKLY)
    length = size + 1
    expected = gradients(arrays, np.broadcast_to(np.arange(5) < length, (2, 5)))
    alone = gradients([x[:, :length] for x in arrays], np.ones((2, length), bool))
    for got, wanted in zip(alone, expected, strict=True):
        assert_close(got, wanted[:, :length], FLOAT64)
        assert not np.any(wanted[:, length:])


@pytest.mark.slow
def test_large_scores_stay_finite():
    q, k, v = drawn(jnp.bfloat16, scale=300.0)
    run = jax.jit(
        jax.value_and_grad(
            lambda q, k, v: jnp.sum(ops.landmark_attention(q, k, v, tokens_per_landmark=4)), (0, 1, 2)
        )
    )
    chex.assert_tree_all_finite(run(q, k, v))


def test_the_iteration_inverts(x64):
    scores = np.random.default_rng(0).normal(size=(2, 7, 7)) + 4 * np.eye(7)
    matrix = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert_close(ops.nystrom.iterative_pinv(array(matrix)), np.linalg.inv(matrix), FLOAT32)
    assert_close(ops.nystrom.iterative_pinv(array(matrix), 12), np.linalg.inv(matrix), FLOAT64)


def test_zoologys_form_is_attention_when_landmarks_suffice_and_leaks_else():
    q, k, v = drawn(np.float32)
    run = jax.jit(ops.nystrom_attention, static_argnames="num_landmarks")
    assert_close(run(q, k, v, num_landmarks=13), jax.jit(ops.softmax_attention)(q, k, v), FLOAT32)
    later = [np.asarray(x) + (np.arange(13) == 12)[:, None, None] for x in (q, k, v)]
    later = [x.astype(np.float32) for x in later]
    moved = np.abs(np.asarray(run(*later, num_landmarks=5)) - run(q, k, v, num_landmarks=5))
    assert moved[:, :12].max() > 1e-3


def test_a_row_with_more_landmarks_than_slots_is_nan():
    @functools.partial(jax.jit, compiler_options=QUICKLY)
    def both(arrays, mask):
        state = ops.init_landmark_state(2, 1, 2, 2, 3, 3)
        options = {"tokens_per_landmark": 2, "initial_state": state}
        y, _ = ops.landmark_attention(*arrays, mask=mask, return_state=True, **options)
        return y, ops.landmark_attention(*arrays, mask=mask, **options)

    for length, is_nan in ((3, False), (4, True)):
        for outputs in both(drawn(np.float32, 4), np.broadcast_to(np.arange(4) < length, (2, 4))):
            assert np.isnan(outputs[:, :length]).all() == is_nan
