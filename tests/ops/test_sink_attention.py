"""Windows with sinks: which keys a query sees, and calls that continue, against float64 softmax by hand."""

import jax
import numpy as np
import pytest

from based_jax import ops
from tests.marks import release_but
from tests.tolerances import BFLOAT16, FLOAT32, assert_close

LEFT, SINKS, BATCH, LENGTH, HEADS, WIDTH = 2, 2, 2, 14, 2, 3
RNG = np.random.default_rng(0)
Q, K, V = (RNG.normal(size=(BATCH, LENGTH, heads, WIDTH)).astype(np.float32) for heads in (HEADS, 1, 1))
# Documents shorter and longer than the sinks, and one that ends where a call does.
IDS = np.array([[0] * 14, [0] * 6 + [1] + [2] * 2 + [3] * 5], np.int32)


def by_hand(q, k, v, ids):
    y = np.zeros((*q.shape[:3], v.shape[-1]))
    for row, i in np.ndindex(q.shape[:2]):
        start = max(t for t in range(i + 1) if t == 0 or ids[row, t] != ids[row, t - 1])
        seen = [j for j in range(start, i + 1) if i - j <= LEFT or j - start < SINKS]
        for head in range(q.shape[2]):
            scores = q[row, i, head].astype(float) @ k[row, seen, 0].T.astype(float) / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            y[row, i, head] = weights / weights.sum() @ v[row, seen, 0]
    return y


@pytest.mark.parametrize("implementation", release_but(["xla"], ["xla", "reference"]))
def test_values_and_gradients(implementation):
    options = {"left": LEFT, "sinks": SINKS, "segment_ids": IDS, "implementation": implementation}

    @jax.jit
    def both(*arrays):
        state = ops.init_sink_cache(BATCH, LEFT, SINKS, 1, WIDTH, WIDTH)
        y, pullback = jax.vjp(lambda *x: ops.sink_attention(*x, **options), *arrays)
        again, pulled = jax.vjp(lambda *x: ops.sink_attention(*x, initial_state=state, **options), *arrays)
        return (y, *pullback(y)), (again, *pulled(y))

    alone, after_nothing = both(Q, K, V)
    assert_close(alone[0], by_hand(Q, K, V, IDS), FLOAT32)
    for one, other in zip(alone, after_nothing, strict=True):
        assert_close(one, other, FLOAT32)


@pytest.mark.parametrize("cuts", [(1, 6, 7, 8, 13)])
def test_calls_that_continue(cuts):
    state = ops.init_sink_cache(BATCH, LEFT, SINKS, 1, WIDTH, WIDTH)
    outputs = []
    for begin, end in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        part = slice(begin, end)
        # Two tokens of padding, whose numbers must not matter.
        q, k, v = (np.concatenate([x[:, part], np.full_like(x[:, :2], np.nan)], axis=1) for x in (Q, K, V))
        ids = np.concatenate([IDS[:, part], IDS[:, end - 1 : end] + [[7, 8]]], axis=1)
        mask = np.arange(end - begin + 2)[None].repeat(BATCH, 0) < end - begin
        options = {"segment_ids": ids, "mask": mask, "left": LEFT, "sinks": SINKS}
        y, state = ops.sink_attention(q, k, v, initial_state=state, return_state=True, **options)
        outputs.append(y[:, : end - begin])
    assert_close(np.concatenate(outputs, axis=1), by_hand(Q, K, V, IDS), FLOAT32)
    # The first keys of the last document of each row, in order.
    assert_close(state.k[0], K[0, :SINKS], 0)
    assert_close(state.k[1], K[1, 9 : 9 + SINKS], 0)


@pytest.mark.slow
def test_gradients_of_sinks_are_summed_over_many_queries():
    """Of a row of one document, and one of two."""
    x = np.random.default_rng(1).normal(size=(2, 1200, 1, 2)).astype(np.float32)
    ids = np.repeat([[0, 0], [0, 1]], 600, axis=1)
    gradients = []
    for dtype, implementation in (("bfloat16", "xla"), ("float32", "reference")):
        options = {"left": 3, "sinks": 2, "segment_ids": ids, "implementation": implementation}
        total = jax.jit(jax.grad(lambda k, v: ops.sink_attention(v, k, v, **options).sum(), (0, 1)))  # noqa: B023
        gradients.append(total(x.astype(dtype), x.astype(dtype)))
    assert_close(gradients[0], gradients[1], BFLOAT16)


def test_more_sinks_than_tokens():
    y = ops.sink_attention(Q, K, V, left=LEFT, sinks=LENGTH + 1)
    assert_close(y, ops.softmax_attention(Q, K, V, implementation="reference"), FLOAT32)


def test_keys_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"k has shape \(2, 13, 1, 3\): expected"):
        ops.sink_attention(Q, K[:, 1:], V, left=LEFT, sinks=SINKS)
