"""Softmax attention after a cache, in blocks of keys, in sparser patterns, and over merged sets of keys."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops import attention_to_keys
from based_jax.ops.attention_to_keys import BLOCK
from based_jax.ops.core.implementations import KERNELS
from tests.arrays import array, blank, stream_at
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT64, assert_close

IMPLEMENTATIONS = [
    name for name in ops.implementations("softmax_attention") if name not in (*KERNELS, "tiled")
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_full_cache_overflows_loudly(implementation):
    """Known lengths raise; under jit every output of the row is NaN, as its oldest keys are gone."""
    q = array(np.random.default_rng(0).normal(size=(2, 3, 1, 2)), jnp.float32)
    prefill = functools.partial(
        ops.softmax_attention, q, q, q, return_state=True, implementation=implementation
    )
    _, cache = jax.jit(prefill)(
        initial_state=blank(ops.init_kv_cache, 2, 4, 1, 2, 2),
        mask=np.array([[True] * 3, [True, False, False]]),
    )
    with pytest.raises(ValueError, match="length = 6: expected at most max_length = 4 tokens"):
        prefill(initial_state=cache)
    with pytest.raises(ValueError, match="length = 3: expected at most max_length = 2 tokens"):
        jax.jit(lambda: prefill(initial_state=ops.init_kv_cache(2, 2, 1, 2, 2)))()

    y, cache = jax.jit(lambda cache: prefill(initial_state=cache))(cache)
    y, text = np.asarray(y), np.asarray(q, np.float64)[1:]
    assert np.isnan(y[0]).all()
    text = np.concatenate([text[:, :1], text], axis=1)
    assert_close(y[1:], oracles.softmax_attention(text, text, text)[:, 1:], FLOAT32)
    one = array(np.asarray(q)[:, :1])
    y = jax.jit(lambda cache: ops.softmax_attention(one, one, one, initial_state=cache))(cache)
    assert np.isnan(y).all(), "both rows are over now, and stay so"


def test_padding_takes_no_slots():
    """A bucket of 6 with at most 4 real tokens fits into 4 slots, with known lengths and under jit."""
    q = array(np.random.default_rng(0).normal(size=(2, 6, 1, 2)), jnp.float32)
    counts = np.asarray([4, 1])
    mask = array(draw.mask(counts, 6))
    cache = blank(ops.init_kv_cache, 2, 4, 1, 2, 2)
    expected = oracles.softmax_attention(*[np.asarray(q, np.float64)] * 3, counts=counts)

    def prefill(cache, mask):
        return ops.softmax_attention(q, q, q, initial_state=cache, mask=mask)

    # Known, traced, and a known cache inside a traced function.
    for y in (prefill(cache, mask), jax.jit(prefill)(cache, mask), jax.jit(lambda: prefill(cache, mask))()):
        assert np.isfinite(y).all()
        assert_close(np.where(mask[..., None, None], y, 0), expected, FLOAT32)


@pytest.mark.parametrize(("left", "slots"), [(2, 3), pytest.param(None, 5, marks=pytest.mark.release)])
def test_a_cache_of_lower_precision_keeps_the_dtype_of_the_call(left, slots):
    rng = np.random.default_rng(0)
    q, k, v = np.float32(rng.normal(size=(3, 1, 5, 1, 2)))
    cache = blank(ops.init_kv_cache, 1, slots, 1, 2, 2, dtype=jnp.bfloat16)
    call = jax.jit(functools.partial(ops.softmax_attention, left=left, return_state=True))
    y1, cache = call(q[:, :4], k[:, :4], v[:, :4], initial_state=cache)
    y2, cache = call(q[:, 4:], k[:, 4:], v[:, 4:], initial_state=cache)
    assert y1.dtype == y2.dtype == jnp.float32
    assert cache.k.dtype == cache.v.dtype == jnp.bfloat16
    expected = oracles.softmax_attention(*(np.asarray(x, np.float64) for x in (q, k, v)), left=left)
    assert_close(np.concatenate([y1, y2], axis=1), expected, BFLOAT16)


SLOTS = 2 * BLOCK + 88
HEADS, KV_HEADS, WIDTH = 4, 2, 8


@pytest.mark.release
@pytest.mark.parametrize(("length", "left"), [(1, SLOTS - 1), pytest.param(3, None, marks=pytest.mark.slow)])
def test_blocks_give_the_numbers_and_gradients_of_the_reference(length, left):
    """Rows without keys, with some in one block, with one block full and, in a window, after a wrap."""
    lengths = np.array([0, 5, BLOCK, SLOTS - 3 if left is None else 2 * SLOTS + 7])
    rng = np.random.default_rng(1)

    def normal(tokens, heads):
        return np.float32(rng.normal(size=(len(lengths), tokens, heads, WIDTH)))

    q, k, v, of_y = (normal(length, heads) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    keys, values = (normal(SLOTS, KV_HEADS) for _ in range(2))
    stream = stream_at(np.int32(lengths), *np.zeros((2, len(lengths)), np.int32))
    mask = np.arange(length) < np.array([length, 1, length, length])[:, None]

    @functools.partial(jax.jit, static_argnums=0)
    def run(implementation, stream, *arrays):
        def call(q, k, v, keys, values):
            options = {"left": left, "mask": mask, "implementation": implementation}
            y = ops.softmax_attention(q, k, v, initial_state=ops.KVCache(keys, values, stream), **options)
            return jnp.where(mask[..., None, None], y, 0)

        y, pull_back = jax.vjp(call, *arrays)
        return y, *pull_back(of_y)

    results = [run(name, stream, q, k, v, keys, values) for name in ("xla", "reference")]
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


@pytest.mark.release
@pytest.mark.parametrize(
    ("left", "implementation"), [(4, "xla"), pytest.param(None, "reference", marks=pytest.mark.slow)]
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


@pytest.mark.release
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
