"""The decoding step of a window, fused and plain: rotary positions, rows apart, and in the mixer."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from based_jax import mixers, ops
from tests.arrays import array, normals, ones, stream_at
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


@pytest.mark.release
@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_the_mixer_decodes_the_same_with_the_kernel(fraction):
    """A prompt, then token by token past a wrap of the ring; and as one parallel pass."""
    options = {"d_model": 16, "num_heads": 4, "num_kv_heads": 2, "left": 4, "rotary_fraction": fraction}
    plain = mixers.make("sliding_window", step_implementation="xla", **options)
    fused = mixers.make("sliding_window", step_implementation="pallas", **options)
    x = array(np.random.default_rng(0).normal(size=(2, 12, 16)), jnp.float32)
    params = normals(plain.init, x)

    @functools.partial(jax.jit, static_argnums=0)
    def decode(mixer, x):
        y, state = mixer.apply(params, x[:, :3], mixer.init_state(2))

        def step(state, token):
            y, state = mixer.apply(params, token[:, None], state)
            return state, y[:, 0]

        state, steps = jax.lax.scan(step, state, x[:, 3:].swapaxes(0, 1))
        return jnp.concatenate([y, steps.swapaxes(0, 1)], axis=1), state

    with pallas_kernels.interpreted():
        y, state = decode(fused, x)
    expected, expected_state = decode(plain, x)
    assert_close(y, expected, FLOAT32)
    assert_close(state, expected_state, FLOAT32)
    assert_close(y, jax.jit(plain.apply)(params, x)[0], FLOAT32)


def test_errors_of_the_kernel_name_the_argument(unchecked):
    rng = np.random.default_rng(0)
    q, k, v = token(rng)
    with pallas_kernels.interpreted():
        with pytest.raises(ValueError, match="implementation = 'pallas': the last axis of q is 300 long"):
            ops.window_step(ones((3, 4, 300)), k, v, cache_of(rng), implementation="pallas")
        with pytest.raises(ValueError, match=r"initial_state\.v has shape"):
            ops.window_step(q, k, v[..., :2], cache_of(rng), implementation="pallas")
        with pytest.raises(ValueError, match="dim = 9: expected 1 to the head width 8"):
            ops.window_step(q, k, v, cache_of(rng), rotary_dim=9, implementation="pallas")
