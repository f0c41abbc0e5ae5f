"""The decoding step of a window, fused and plain: rotary positions, rows apart, and in the mixer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from based_jax import ops
from tests.arrays import array, stream_at
from tests.ops import oracles
from tests.tolerances import FLOAT32, FLOAT32_ANGLE, assert_close

IMPLEMENTATIONS = [name for name in ops.implementations("window_step") if name != "triton"]
ROTARY = {"rotary_dim": 5, "rotary_base": 100.0, "rotary_interleaved": True}


def cache_of(rng: np.random.Generator) -> ops.KVCache:
    """Rows of 2, 5 and 40 tokens, the last one in a segment that began at 38."""
    k, v = (array(rng.normal(size=(3, 6, 2, size)), jnp.float32) for size in (8, 3))
    length, start, segment = (array(x, jnp.int32) for x in ([2, 5, 40], [0, 0, 38], [0, 0, 1]))
    return ops.KVCache(k, v, stream_at(length, start, segment))


def token(rng: np.random.Generator) -> Any:
    return [array(rng.normal(size=(3, heads, size)), jnp.float32) for heads, size in [(4, 8), (2, 8), (2, 3)]]


@pytest.mark.parametrize("positions", [None, [7, 0, 90]])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rotates_at_each_rows_position(implementation, positions):
    rng = np.random.default_rng(0)
    q, k, v = token(rng)
    cache = cache_of(rng)
    given = None if positions is None else array(positions, jnp.int32)

    @jax.jit
    def step(q, k, v, cache, positions):
        return ops.window_step(q, k, v, cache, positions=positions, implementation=implementation, **ROTARY)

    with pallas_kernels.interpreted():
        y, after = jax.tree.map(np.asarray, step(q, k, v, cache, given))

    tolerance = FLOAT32 + 100 * FLOAT32_ANGLE
    at = np.asarray([2, 5, 2] if positions is None else positions)[:, None]
    q, k = (oracles.rotary(np.asarray(x, np.float64)[:, None], at, 5, 100.0, True)[:, 0] for x in (q, k))
    assert after.stream.length.tolist() == [3, 6, 41]
    assert after.stream.start.tolist() == cache.stream.start.tolist()
    for row, (n, start) in enumerate([(2, 0), (5, 0), (40, 38)]):
        assert_close(after.k[row, n % 6], k[row], tolerance)
        slots = [t % 6 for t in range(max(start, n - 5), n + 1)]
        keys, values = (np.asarray(x[row, slots], np.float64)[None] for x in (after.k, after.v))
        queries = np.repeat(q[row][None, None], len(slots), axis=1)
        assert_close(y[row], oracles.softmax_attention(queries, keys, values)[0, -1], tolerance)
