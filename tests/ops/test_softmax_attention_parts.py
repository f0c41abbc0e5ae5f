"""Softmax attention in sparser patterns, and over several sets of keys that are merged afterwards."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops import attention_to_keys
from tests.arrays import array
from tests.ops import oracles
from tests.tolerances import FLOAT32, FLOAT64, assert_close

IDS = array(np.repeat([[0, 1, 0], [2, 2, 5]], [3, 4, 4], axis=1), jnp.int32)
COUNTS = np.array([11, 8])
REAL = np.arange(11) < COUNTS[:, None]
MASK = array(REAL)


def drawn(dtype=np.float64):
    generator = np.random.default_rng(0)
    return [array(generator.normal(size=(2, 11, heads, 3)), dtype) for heads in (4, 2, 2)]


def every_third(i, j):
    return (i - j) % 3 == 0


def by_hand(q, k, v, left):
    """Outputs and log sums, query by query."""
    y, log_sum = np.zeros(q.shape), np.zeros(q.shape[:3])
    for row, count in enumerate(COUNTS):
        starts = oracles.segment_starts(np.asarray(IDS[row]))
        for i in range(count):
            keys = [
                j for j in range(starts[i], i + 1) if (i - j) % 3 == 0 and (left is None or i - j <= left)
            ]
            for head in range(q.shape[2]):
                scores = k[row, keys, head // 2] @ q[row, i, head] / np.sqrt(3)
                log_sum[row, i, head] = np.log(np.exp(scores).sum())
                y[row, i, head] = np.exp(scores - log_sum[row, i, head]) @ v[row, keys, head // 2]
    return y, log_sum


@pytest.mark.parametrize(
    ("left", "implementation"),
    [
        (4, "xla"),
        (None, "reference"),
        *(pytest.param(*case, marks=pytest.mark.release) for case in ((None, "xla"), (4, "reference"))),
    ],
)
def test_a_pattern_counts_positions_in_the_segment(implementation, left, x64):
    q, k, v = drawn()
    how = {"allowed": every_third, "return_log_sum": True, "left": left, "implementation": implementation}

    @jax.jit
    def whole(q, k, v):
        return ops.softmax_attention(q, k, v, segment_ids=IDS, mask=MASK, **how)

    @jax.jit
    def continued(q, k, v):
        state = ops.init_kv_cache(2, 11 if left is None else left + 1, 2, 3, 3, jnp.float64)
        parts = []
        for chunk in (slice(0, 5), slice(5, 6), slice(6, 11)):
            y, state = ops.softmax_attention(
                q[:, chunk],
                k[:, chunk],
                v[:, chunk],
                initial_state=state,
                return_state=True,
                segment_ids=IDS[:, chunk],
                mask=MASK[:, chunk],
                **how,
            )
            parts.append(y)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *parts)

    expected = by_hand(*map(np.asarray, (q, k, v)), left)
    for run in (whole, continued):
        with mock.patch.multiple(attention_to_keys, QUERY_BLOCK=4, MIN_WINDOW_BLOCK=4):  # several blocks
            results = run(q, k, v)
        for got, want in zip(results, expected, strict=True):
            real = REAL.reshape(2, 11, *[1] * (want.ndim - 2))
            assert_close(np.where(real, got, 0), want, FLOAT64)


def test_disjoint_sets_of_keys_merge():
    q, k, v = drawn(np.float32)

    def of_thirds(q, k, v):
        return ops.merge_attention(
            *(
                ops.softmax_attention(
                    q, k, v, return_log_sum=True, allowed=lambda i, j, part=part: j % 3 == part
                )
                for part in range(3)  # the first queries see nothing of some of them
            )
        )

    def with_gradients(function):
        def loss(q, k, v):
            y = function(q, k, v)
            return jnp.sum(y**2), y

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)

    assert_close(with_gradients(of_thirds), with_gradients(ops.softmax_attention), FLOAT32)


def test_log_sums_of_bfloat16_are_float32():
    q, k, v = drawn(jnp.bfloat16)
    y, log_sum = jax.jit(functools.partial(ops.softmax_attention, return_log_sum=True))(q, k, v)
    assert (y.dtype, log_sum.dtype) == (jnp.bfloat16, jnp.float32)
