"""The ring of keys and values against a Python list per row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops.core import kv_cache
from tests.arrays import blank
from tests.ops import draw

BATCH, SLOTS = 3, 4


@functools.partial(jax.jit, static_argnames="length")
def write(cache, k, v, mask, *, length: int):
    positions, stream = ops.advance(cache.stream, BATCH, length, None, mask)
    return kv_cache.write(cache, k, v, positions, stream)


recent = jax.jit(kv_cache.recent, static_argnums=1)
slot_index = jax.jit(kv_cache.slot_index, static_argnums=1)


@given(
    st.lists(
        st.sampled_from([1, 3, 9]).flatmap(lambda n: st.tuples(st.just(n), draw.counts(BATCH, n))),
        min_size=1,
        max_size=5,
    )
)
def test_the_last_tokens_are_kept(calls):
    """Calls shorter and longer than the ring, wraps, padding: what is kept is the end of each row's list."""
    cache = blank(ops.init_kv_cache, BATCH, SLOTS, 2, 1, 1)
    assert cache.slots == SLOTS
    rows: list[list[float]] = [[] for _ in range(BATCH)]
    token = 0.0
    for length, counts in calls:
        k = token + 1 + np.arange(BATCH * length, dtype=np.float32).reshape(BATCH, length)
        token = k.max()
        for row, count in enumerate(counts):
            rows[row] += k[row, :count].tolist()
        k = np.stack([k, k + 0.5], axis=2)[..., None]  # two heads, values are minus the keys
        cache = write(cache, k, -k, draw.mask(counts, length), length=length)

    on_device, cache = cache, jax.tree.map(np.asarray, cache)
    index = np.asarray(slot_index(on_device.stream.length, SLOTS))
    for row, history in enumerate(rows):
        assert cache.stream.length[row] == len(history)
        held = {int(i): float(cache.k[row, slot, 0, 0]) for slot, i in enumerate(index[row]) if i >= 0}
        kept = range(max(len(history) - SLOTS, 0), len(history))
        assert held == {i: history[i] for i in kept}
        assert all(i % SLOTS == slot for slot, i in enumerate(index[row].tolist()))
    assert np.array_equal(cache.v, -cache.k)
    # Heads stay apart.
    assert np.array_equal(cache.k[:, :, 1] - cache.k[:, :, 0], 0.5 * (cache.k[:, :, 0] > 0))

    for count in (0, 1, 3, SLOTS):
        k, v, index = jax.tree.map(np.asarray, recent(on_device, count))
        assert k.shape == v.shape == (BATCH, count, 2, 1)
        for row, history in enumerate(rows):
            assert index[row].tolist() == list(range(len(history) - count, len(history)))
            for i, value in zip(index[row].tolist(), k[row, :, 0, 0].tolist(), strict=True):
                assert i < 0 or value == history[i]


def test_values_are_stored_in_the_dtype_of_the_cache():
    cache = ops.init_kv_cache(BATCH, SLOTS, 1, 2, 3, dtype=jnp.bfloat16)
    assert (cache.k.shape, cache.v.shape) == ((BATCH, SLOTS, 1, 2), (BATCH, SLOTS, 1, 3))
    k, v = (np.ones((BATCH, 2, 1, size), np.float32) for size in (2, 3))
    cache = jax.tree.map(np.asarray, write(cache, k, v, None, length=2))
    assert cache.k.dtype == cache.v.dtype == jnp.bfloat16
    assert cache.v[:, :2].all()
    assert not cache.v[:, 2:].any()
