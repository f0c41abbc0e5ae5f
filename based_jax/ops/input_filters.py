"""Filters that depend on the input, with spikes at the lags at which a text repeats itself.

Zoology, section 4 and appendix H.8. Such a convolution copies the neighbours of a token's earlier occurrence
to its later one.
"""

import operator

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import checkpoint
from based_jax.ops.core.op import op
from based_jax.ops.core.stream import TokenPositions
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array


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
    length = x.shape[1]
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
