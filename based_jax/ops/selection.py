"""Select tokens that attend, by ids or scores, and filters with spikes at the lags of repeated text.

Zoology, section 5 and appendix C.2; of filters, section 4 and appendix H.8: such a convolution copies the
neighbours of a token's earlier occurrence to its later one. Selection is per segment; `positions` are those
of a call's tokens (`ops.advance`). Functions without a state expect whole segments.
"""

import operator

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Shaped

from based_jax.ops.attention_to_keys import attend
from based_jax.ops.core.arrays import accumulation_dtype, checkpoint, set_rows, wide
from based_jax.ops.core.kv_cache import put
from based_jax.ops.core.op import body, op
from based_jax.ops.core.stream import Stream, TokenPositions, advance, unpadded
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array

NOTHING = -1e30
"""The logarithm of an empty sum: finite, so that it may be added and differentiated."""


@op()
def repeated(
    tokens: Int[Array, "B N"],
    order: int = 1,
    *,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Bool[Array, "B N"]:
    """Return where the last `order` tokens repeat an earlier n-gram: Zoology's programmatic selection.

    Order 1 is its equation 3, x_i = x_j for a j < i; order 2 the repeated bigrams of its appendix C.2, the
    hits of associative recall. Sorts, so takes O(N log N).

    Args:
        tokens: ids, at least 0.
        order: tokens compared.
        segment_ids: documents packed into one row; occurrences in other documents do not count.
        mask: True for real tokens, right padding.

    Returns:
        (B, N) booleans, False for padding and where the segment has fewer than `order` tokens so far.
    """
    expect_array("tokens", tokens, ("B", "N"), "integer")
    expect(order >= 1, "order", order, "at least 1 token")
    batch, length = tokens.shape
    positions, _ = body(advance)(None, batch, length, segment_ids, mask)
    start, index, age = (
        jnp.broadcast_to(x, tokens.shape) for x in (positions.start, positions.index, positions.positions)
    )
    # Of equal n-grams in one segment all but the first in time are repetitions. Tokens before the segment are
    # -1, so that incomplete n-grams equal no other.
    tokens = wide(tokens)
    grams = [jnp.where(age >= back, jnp.roll(tokens, back, axis=1), -1) for back in range(order)]
    *keys, order_of = lax.sort((start, *grams, index), dimension=1, num_keys=1 + order)
    same = jnp.stack([key[:, 1:] == key[:, :-1] for key in keys]).all(axis=0)
    same = jnp.pad(same, ((0, 0), (1, 0)))
    result = set_rows(jnp.zeros(tokens.shape, bool), order_of, same)
    return result if mask is None else result & mask


@op()
def repeated_in(
    history: Int[Array, "B W"],
    tokens: Int[Array, "B N"],
    positions: TokenPositions,
    stream: Stream,
    order: int = 1,
) -> tuple[Bool[Array, "B N"], Int[Array, "B W"]]:
    """Compute `repeated` for tokens that continue a row, in O(N W); return it and the row's tokens so far.

    Args:
        history: all tokens of each row before this call, index p in slot p, with free slots for these.
        tokens: ids at `positions`.
        positions, stream: results of `ops.advance` for this call.
        order: tokens compared.
    """
    history = put(history, tokens, positions, stream)
    index, start = (jnp.broadcast_to(x, tokens.shape)[:, :, None] for x in (positions.index, positions.start))
    slots = jnp.arange(history.shape[1])
    same = (slots < index) & (slots - (order - 1) >= start)
    for back in range(order):
        last = jnp.take_along_axis(history, jnp.maximum(index[..., 0] - back, 0), axis=1)
        same &= jnp.roll(history, back, axis=1)[:, None, :] == last[:, :, None]
    return same.any(axis=-1), history


@op()
def segment_lengths(positions: TokenPositions, batch_size: int) -> Int[Array, "B N"]:
    """Return the number of real tokens in each token's segment."""
    return body(segment_sum)(jnp.ones((batch_size, positions.index.shape[1]), jnp.int32), positions)


@op()
def segment_sum(values: Shaped[Array, "B N"], positions: TokenPositions) -> Shaped[Array, "B N"]:
    """Return the sum over the real tokens of each token's segment. NOT causal."""
    start = _starts(positions, values.shape[0])
    if positions.mask is not None:
        values = jnp.where(positions.mask, values, 0)
    is_float = jnp.issubdtype(values.dtype, jnp.floating)
    wide = values.astype(accumulation_dtype(values)) if is_float else values
    return _sums(wide, start).astype(values.dtype)


@op()
def highest(
    scores: Float[Array, "B N"], count: Int[Array, "B N"], positions: TokenPositions
) -> Bool[Array, "B N"]:
    """Mark the tokens with the `count` highest scores of their segment. NOT causal: ranks whole segments."""
    batch, length = scores.shape
    start = _starts(positions, batch)
    if positions.mask is not None:
        scores = jnp.where(positions.mask, scores, -jnp.inf)
    index = jnp.broadcast_to(jnp.arange(length), scores.shape)
    # Sort by segment, then by score: the rank is the index in this order minus the segment's start.
    order = lax.sort((start, -scores, index), dimension=1, num_keys=2)[2]
    rank = set_rows(jnp.zeros_like(index), order, index) - start
    return rank < count if positions.mask is None else (rank < count) & positions.mask


@op()
def segment_softmax(scores: Float[Array, "B N"], positions: TokenPositions) -> Float[Array, "B N"]:
    """Return the softmax over the tokens of each segment, 0 for padding. NOT causal."""
    start, dtype = _starts(positions, scores.shape[0]), scores.dtype
    scores = scores.astype(accumulation_dtype(scores))
    if positions.mask is not None:
        scores = jnp.where(positions.mask, scores, NOTHING)
    top = _largest(lax.stop_gradient(scores), start)
    weights = jnp.exp(scores - top)
    if positions.mask is not None:
        weights = jnp.where(positions.mask, weights, 0)
    total = body(segment_sum)(weights, positions)
    return (weights / jnp.where(total > 0, total, 1)).astype(dtype)


@op()
def running_log_sum(
    scores: Float[Array, "B N"], before: Float[Array, " B"], positions: TokenPositions
) -> tuple[Float[Array, "B N"], Float[Array, " B"]]:
    """Return log sum_{j <= i} exp(score_j) over the segment of each token i, and its last value to continue.

    Both in float32 (float64 for float64 scores): in bfloat16 the sums of many tokens stop growing.

    Args:
        scores: scores of the tokens at `positions`.
        before: the value at each row's last token before this call; `NOTHING` if there was none.
    """
    scores = scores.astype(accumulation_dtype(scores))
    if positions.mask is not None:
        scores = jnp.where(positions.mask, scores, NOTHING)
    begins = jnp.broadcast_to(positions.positions == 0, scores.shape)

    def join(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        total = jnp.where(right[0], right[1], jnp.logaddexp(left[1], right[1]))
        return left[0] | right[0], total

    begins = jnp.pad(begins, ((0, 0), (1, 0)))
    totals = jnp.concatenate([before[:, None].astype(scores.dtype), scores], axis=1)
    totals = lax.associative_scan(join, (begins, totals), axis=1)[1]
    return totals[:, 1:], totals[:, -1]


@op()
def attention_of_some(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    chosen: Bool[Array, "B N"],
    count: int,
    *,
    mask: Bool[Array, "B N"] | None = None,
) -> Float[Array, "B N H V"]:
    """Attend causally with the chosen queries only, in O(count N); outputs of other queries are 0.

    Args:
        q, k, v: queries, keys, values; H a multiple of G.
        chosen: at most `count` True per row.
        count: queries computed per row, at most N.
        mask: True for real tokens, right padding.
    """
    expect_array("q", q, ("B", "N", "H", "K"), "floating")
    length = q.shape[1]
    expect(1 <= count <= length, "count", count, f"1 to N = {length}")
    index = jnp.argsort((~chosen).astype(jnp.int32), axis=1, stable=True)[:, :count]
    visible = jnp.arange(length) <= index[:, :, None]
    if mask is not None:
        visible &= mask[:, None, :]
        q, k, v = unpadded(mask, (q, k, v))
    queries = jnp.take_along_axis(q, index[..., None, None], axis=1)
    some, _ = attend(queries, k, v, visible, q.shape[-1] ** -0.5)
    some = jnp.where(jnp.take_along_axis(chosen, index, axis=1)[..., None, None], some, 0)
    return set_rows(jnp.zeros((*q.shape[:3], v.shape[-1]), some.dtype), index, some)


@jax.vmap
def _sums(x: Array, start: Array) -> Array:
    return jnp.zeros_like(x).at[start].add(x)[start]


@jax.vmap
def _largest(x: Array, start: Array) -> Array:
    return jnp.full_like(x, NOTHING).at[start].max(x)[start]


def _starts(positions: TokenPositions, batch_size: int) -> Int[Array, "B N"]:
    """Return the start of each token's segment in its row."""
    return jnp.broadcast_to(positions.start, (batch_size, positions.index.shape[1]))


@op()
def repeated_lags(
    history: Int[Array, "B W"], last: Int[Array, "B W"], positions: TokenPositions
) -> tuple[Bool[Array, "B N W"], Int[Array, "B W"]]:
    """Return programmatic filters: at [i, j], if x_t = x_{t-s} for s = i - j and any t <= i in i's segment.

    Args:
        history: token ids of each row, index p in slot p, this call's included.
        last: the last t for each lag s before this call, -1 if there was none.
        positions: of this call's tokens.

    Returns:
        (B, N, W) booleans, a matrix to multiply by the row, False for j >= i; and `last` after this call.
    """
    batch, capacity = history.shape
    length = positions.index.shape[1]
    index, start = (
        jnp.broadcast_to(x, (batch, length))[..., None] for x in (positions.index, positions.start)
    )
    slots = jnp.arange(capacity)
    back = index - slots  # the token that is `slots` before t, and also the lag to the token in a slot
    inside = (back >= start) & (slots >= 1)
    at = jnp.clip(back, 0, capacity - 1)

    here, there = (jax.vmap(operator.getitem)(history, i) for i in (jnp.minimum(index, capacity - 1), at))
    equal = (here == there) & inside
    if positions.mask is not None:
        equal &= positions.mask[..., None]
    times = jnp.maximum(lax.cummax(jnp.where(equal, index, -1), axis=1), last[:, None, :])
    matrix = jnp.take_along_axis(times >= start, at, axis=2) & (back >= 1) & (slots >= start)
    return matrix, times[:, -1]


@op()
def strongest_lags(
    x: Float[Array, "B N K"], count: int, mask: Bool[Array, "B N"] | None = None
) -> tuple[Int[Array, "B T"], Float[Array, "B T"]]:
    """Return the lags >= 1 of the largest autocorrelation sum_t x_t.x_{t-s} / N, and these values.

    By two Fourier transforms, O(N log N K). NOT causal.

    Args:
        x: rows, such as projected embeddings.
        count: number of lags; at most N - 1 are returned.
        mask: True for real tokens, right padding; padding does not count towards a row's length.
    """
    expect_array("x", x, ("B", "N", "K"), "floating")
    x, length = x.astype(accumulation_dtype(x)), x.shape[1]  # transforms take no narrower dtype
    expect(count >= 1, "count", count, "at least 1")
    lengths = jnp.full((x.shape[0], 1), length, x.dtype)
    if mask is not None:
        x = jnp.where(mask[..., None], x, 0)
        lengths = jnp.maximum(mask.sum(axis=1, keepdims=True), 1).astype(x.dtype)
    if length == 1:
        return jnp.ones((x.shape[0], 1), jnp.int32), jnp.zeros((x.shape[0], 1), x.dtype)
    spectrum = jnp.fft.rfft(x, 2 * length, axis=1)
    power = jnp.sum(jnp.square(jnp.abs(spectrum)), axis=-1)
    correlation = jnp.fft.irfft(power, 2 * length, axis=1)[:, 1:length] / lengths
    values, lags = lax.top_k(correlation, min(count, length - 1))
    return lags + 1, values


@op()
def shifted_sum(
    x: Float[Array, "B N D"], lags: Int[Array, "B T"], weights: Float[Array, "B T"]
) -> Float[Array, "B N D"]:
    """Return sum_l weights_l x_{t - lags_l}, with zeros before the row."""

    def shifted(x: Array, lag: Array) -> Array:
        source = jnp.arange(x.shape[0]) - lag
        return jnp.where((source >= 0)[:, None], x[jnp.maximum(source, 0)], 0)

    def one(x: Array, lags: Array, weights: Array) -> Array:
        @checkpoint
        def add(total: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
            return total + item[1] * shifted(x, item[0]), None

        return lax.scan(add, jnp.zeros_like(x), (lags, weights.astype(x.dtype)))[0]

    return jax.vmap(one)(x, lags, weights)
