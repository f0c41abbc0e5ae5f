"""Attention from few queries to a long cache: the same numbers by blocks, without a copy of the cache."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops.attention_to_keys import BLOCK
from tests.tolerances import FLOAT32, assert_close

SLOTS = 2 * BLOCK + 88
HEADS, KV_HEADS, WIDTH = 4, 2, 8


@pytest.mark.parametrize(("length", "left"), [(1, None), (3, None), (1, SLOTS - 1)])
def test_blocks_give_the_numbers_and_gradients_of_the_reference(length, left):
    """Rows without keys, with some in one block, with one block full and, in a window, after a wrap."""
    lengths = np.array([0, 5, BLOCK, SLOTS - 3 if left is None else 2 * SLOTS + 7])
    rng = np.random.default_rng(1)

    def normal(tokens, heads):
        return jnp.asarray(rng.normal(size=(len(lengths), tokens, heads, WIDTH)), jnp.float32)

    q, k, v, of_y = (normal(length, heads) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    keys, values = (normal(SLOTS, KV_HEADS) for _ in range(2))
    empty = ops.init_kv_cache(len(lengths), SLOTS, KV_HEADS, WIDTH, WIDTH)
    stream = dataclasses.replace(empty.stream, length=jnp.asarray(lengths, jnp.int32))
    mask = np.arange(length) < np.array([length, 1, length, length])[:, None]

    def call(implementation, q, k, v, keys, values):
        options = {"left": left, "mask": mask, "implementation": implementation}
        y = ops.softmax_attention(q, k, v, initial_state=ops.KVCache(keys, values, stream), **options)
        return jnp.where(mask[..., None, None], y, 0)

    results = []
    for implementation in ("xla", "reference"):
        y, pull_back = jax.vjp(functools.partial(call, implementation), q, k, v, keys, values)
        results.append((y, *pull_back(of_y)))
    for name, ours, expected in zip(("y", "q", "k", "v", "keys", "values"), *results, strict=True):
        assert_close(ours, expected, FLOAT32, name)


@pytest.mark.parametrize("left", [None, 2047])
def test_a_decoding_step_copies_a_block_and_not_the_cache(left):
    """XLA's CPU compiler would transpose all keys and all values for a step's two products."""
    slots, heads, width = 2048, 2, 16
    cache = ops.init_kv_cache(2, slots, heads, width, width)
    token = jnp.zeros((2, 1, heads, width))
    step = functools.partial(ops.softmax_attention, left=left, return_state=True)
    lowered = jax.jit(step, donate_argnames="initial_state").lower(token, token, token, initial_state=cache)
    scratch = lowered.compile().memory_analysis().temp_size_in_bytes
    assert scratch < 0.25 * (cache.k.nbytes + cache.v.nbytes)
