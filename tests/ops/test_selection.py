"""Which tokens are selected: against loops over segments."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops import selection
from tests.arrays import array
from tests.ops import draw, oracles
from tests.tolerances import FLOAT32, FLOAT64, assert_close

ROWS, LENGTH = 2, 9


def segments(ids, count):
    """The real tokens of each segment of a row."""
    starts = oracles.segment_starts(ids[:count])
    return [[t for t in range(count) if starts[t] == start] for start in sorted(set(starts))]


@jax.jit
def compute(tokens, scores, budget, ids, mask, before):
    positions, _ = ops.advance(None, ROWS, LENGTH, ids, mask)
    lengths = selection.segment_lengths(positions, ROWS)
    return {
        "token": selection.repeated(tokens, segment_ids=ids, mask=mask),
        "bigram": selection.repeated(tokens, 2, segment_ids=ids, mask=mask),
        "lengths": lengths,
        "highest": selection.highest(scores, jnp.minimum(budget, lengths), positions),
        "softmax": selection.segment_softmax(scores, positions),
        "running": jnp.exp(scores - selection.running_log_sum(scores, before, positions)[0]),
    }


@given(st.data(), draw.seeds)
def test_every_segment_is_looked_at_by_itself(data, seed):
    ids, counts = data.draw(draw.segment_ids(ROWS, LENGTH)), data.draw(draw.counts(ROWS, LENGTH))
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, 3, (ROWS, LENGTH)).astype(np.int32)
    scores = generator.normal(size=(ROWS, LENGTH)).astype(np.float32) * 5
    mask = draw.mask(counts, LENGTH)
    before = np.full(ROWS, selection.NOTHING, np.float32)
    got = compute(tokens, scores, np.full((ROWS, LENGTH), 2, np.int32), ids, mask, before)
    expected = {name: np.zeros_like(value) for name, value in jax.device_get(got).items()}
    for row in range(ROWS):
        for segment in segments(ids[row], counts[row]):
            weights = np.exp(scores[row, segment].astype(np.float64))
            for position, t in enumerate(segment):
                bigrams = [tuple(tokens[row, [s, s + 1]]) for s in segment[: max(position - 1, 0)]]
                expected["token"][row, t] = tokens[row, t] in tokens[row, segment[:position]]
                expected["bigram"][row, t] = position > 0 and tuple(tokens[row, [t - 1, t]]) in bigrams
                expected["lengths"][row, t] = len(segment)
                expected["highest"][row, t] = np.sum(scores[row, segment] > scores[row, t]) < 2
                expected["softmax"][row, t] = weights[position] / weights.sum()
                expected["running"][row, t] = weights[position] / weights[: position + 1].sum()
    real = {name: np.where(mask, value, 0) for name, value in got.items()}
    assert_close(real, expected, FLOAT32)


def test_bytes_repeat_no_token_before_the_text():
    tokens = np.array([[5, 1, 255, 5, 7]], np.uint8)
    assert not selection.repeated(tokens, 2).any()


def test_a_running_sum_continues(x64):
    scores = np.random.default_rng(0).normal(size=(2, 8)) * 30
    ids = array(np.int32([[0] * 8, [0, 0, 1, 1, 1, 2, 2, 2]]))
    scores = array(scores)
    nothing = array(np.full(2, selection.NOTHING))

    def continued(scores, before):
        stream, parts = None, []
        for chunk in (slice(0, 3), slice(3, 4), slice(4, 8)):
            positions, stream = ops.advance(stream, 2, chunk.stop - chunk.start, ids[:, chunk])
            sums, before = selection.running_log_sum(scores[:, chunk], before, positions)
            parts.append(sums)
        return jnp.concatenate(parts, axis=1)

    @jax.jit
    def whole(scores, before):
        return selection.running_log_sum(scores, before, ops.advance(None, 2, 8, ids)[0])[0]

    @jax.jit
    def with_gradients(*arguments):
        def loss(*arguments):
            sums = continued(*arguments)
            return jnp.sum(sums), sums

        return jax.grad(loss, (0, 1), has_aux=True)(*arguments)

    gradients, sums = with_gradients(scores, nothing)
    assert_close(sums, whole(scores, nothing), FLOAT64)
    chex.assert_tree_all_finite(gradients)


def test_chosen_queries_attend_as_in_full_attention(x64):
    generator = np.random.default_rng(1)
    q, k, v = (array(generator.normal(size=(2, 9, heads, 3))) for heads in (4, 2, 2))
    chosen = np.zeros((2, 9), bool)
    chosen[0, [1, 5, 8]], chosen[1, 0] = True, True
    mask = array(np.arange(9) < np.array([[9], [4]]))
    run = jax.jit(selection.attention_of_some, static_argnums=4)
    full = jax.jit(ops.softmax_attention)(q, k, v, mask=mask)
    expected = np.where(chosen[..., None, None], full, 0)
    assert_close(run(q, k, v, chosen, 3, mask=mask), expected, FLOAT64)
    assert_close(run(q, k, v, chosen, 9, mask=mask), expected, FLOAT64)
