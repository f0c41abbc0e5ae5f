"""Softmax attention through a few landmarks: Nystrom attention, and a causal variant.

The sequence is split into m chunks, whose mean queries q~ and keys k~ are the landmarks (NystromFormer, Xiong
et al. 2021):

    y = F1 pinv(F2) F3 v,   F1 = softmax(q k~^T),   F2 = softmax(q~ k~^T),   F3 = softmax(q~ k^T)

with the pseudo-inverse by six steps of Z <- Z (13 - KZ (15 - KZ (7 - KZ))) / 4. Zoology's code masks each
factor to entries whose column is at most the row, as if landmark j were token j. A query thus sees means of
later tokens, so this form is not causal.

The causal form masks by time. Chunks are c tokens long (`tokens_per_landmark`), whatever the length of the
text. A landmark sees its own chunk, so F2 is the identity. A query sees the landmarks of the chunks before
its own, each weighted as c tokens, and the tokens of its own chunk:

    y_i = (sum_{a before i's} c exp(q_i.k~_a) u_a + sum_{j<=i in i's} exp(q_i.k_j) v_j) / normaliser
    u_a = sum_{j in a} softmax_j(q~_a.k_j) v_j

This equals softmax attention if all keys of each chunk are equal, and always for c = 1.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops.attention_to_keys import AttentionOptions, attend_in_blocks
from based_jax.ops.core.arrays import accumulation_dtype, set_rows
from based_jax.ops.core.kv_cache import KVCache, init_kv_cache
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.ops.core.op import expect_qkv, expect_state, op, stateful_op
from based_jax.ops.core.stream import Stream, TokenPositions, continue_from, init_stream, outputs_and_state
from based_jax.ops.short_conv import ShortConvState, init_short_conv_state, short_conv
from based_jax.ops.softmax_attention import merge_attention, softmax_attention
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array, expect_integer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LandmarkState:
    """State of `landmark_attention` between calls."""

    means: ShortConvState
    """the last c - 1 queries and keys"""
    piece: KVCache
    """the last c keys and values"""
    keys: Float[Array, "B M H K"]
    """mean keys of the landmarks, oldest first"""
    values: Float[Array, "B M H V"]
    """their readouts u"""
    index: Int[Array, "B M"]
    """index of the last token of each landmark's chunk, -1 in empty slots"""
    stream: Stream


def init_landmark_state(
    batch_size: int,
    slots: int,
    tokens_per_landmark: int,
    heads: int,
    width: int,
    value_size: int,
    dtype: Any = jnp.float32,
) -> LandmarkState:
    """Return the state before the first token of rows of at most `slots` landmarks."""
    return LandmarkState(
        means=init_short_conv_state(batch_size, 2 * heads * width, tokens_per_landmark, dtype),
        piece=init_kv_cache(batch_size, tokens_per_landmark, heads, width, value_size, dtype),
        keys=jnp.zeros((batch_size, slots, heads, width), dtype),
        values=jnp.zeros((batch_size, slots, heads, value_size), dtype),
        index=jnp.full((batch_size, slots), -1, jnp.int32),
        stream=init_stream(batch_size),
    )


@op()
def nystrom_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    *,
    num_landmarks: int,
    iterations: int = 6,
) -> Float[Array, "B N H V"]:
    """Compute Nystrom attention with the masks of Zoology's code: NOT causal if N > num_landmarks.

    Args:
        q, k, v: queries, keys, values of whole rows.
        num_landmarks: m; with m >= N this is exact causal attention.
        iterations: iterations of the pseudo-inverse.

    Returns:
        y: (B, N, H, V) in the dtype of v.
    """
    _, length, *_ = expect_qkv(q, k, v)
    expect_integer("num_landmarks", num_landmarks, 1)
    expect_integer("iterations", iterations, 1)
    if num_landmarks >= length:
        return softmax_attention(q, k, v)
    dtype = accumulation_dtype(v)
    q, k, values = (x.astype(dtype).swapaxes(1, 2) for x in (q, k, v))
    q = q * q.shape[-1] ** -0.5
    q_mean, k_mean = _chunk_means(q, num_landmarks), _chunk_means(k, num_landmarks)
    readout = _lower_softmax(q_mean, k) @ values
    matrix = _lower_softmax(q_mean, k_mean)
    y = _lower_softmax(q, k_mean) @ (iterative_pinv(matrix, iterations) @ readout)
    return y.swapaxes(1, 2).astype(v.dtype)


@op()
def iterative_pinv(matrix: Float[Array, "*lead M M"], iterations: int = 6) -> Float[Array, "*lead M M"]:
    """Approximate the pseudo-inverse of non-negative matrices whose rows sum to 1 (Razavi et al. 2014).

    The initial guess is the transpose over the largest column sum.
    Full precision: on a GPU the default for float32 products keeps 10 bits, whose errors the iteration would
    have to correct.
    """
    product = functools.partial(jnp.matmul, precision="highest")
    unit = jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
    z = matrix.swapaxes(-1, -2) / matrix.sum(-2).max(-1)[..., None, None]
    for _ in range(iterations):
        kz = product(matrix, z)
        z = product(z / 4, 13 * unit - product(kz, 15 * unit - product(kz, 7 * unit - kz)))
    return z


@stateful_op(rows=("q", "k", "v", "segment_ids", "mask"))
def landmark_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    *,
    tokens_per_landmark: int,
    initial_state: LandmarkState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LandmarkState]:
    """Attend causally through landmarks, in O(N (N / c + c)); return y, (B, N, H, V).

    Outputs are NaN for rows with more landmarks than the state has slots for. Shared arguments, results and
    errors: `help(based_jax.ops)`; implementation: see `softmax_attention`. `return_state` needs a state.

    Args:
        q, k, v: queries, keys, values.
        tokens_per_landmark: c, tokens per landmark; chunks are counted from the start of each segment.
    """
    batch, length, heads, width, value_size = expect_qkv(q, k, v)
    expect_integer("tokens_per_landmark", tokens_per_landmark, 1)
    size, state = tokens_per_landmark, initial_state
    expect_state(state, keys=(batch, "M", heads, width))
    if state is not None:
        slots = state.keys.shape[1]
        expect_state(state, values=(batch, slots, heads, value_size))
        expect_array("initial_state.index", state.index, (batch, slots), "integer")
    call = continue_from(state, batch, length, segment_ids, mask)
    q, k, v = call.unpadded((q, k, v))

    # Means and readouts of the last c tokens, at every token: those at the end of a chunk are the landmarks.
    both = jnp.concatenate([q, k], axis=2).reshape(batch, length, -1).astype(accumulation_dtype(q))
    taps = jnp.full((size, both.shape[-1]), 1 / size, both.dtype)
    last = None if state is None else state.means
    context: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask}
    results = short_conv(both, taps, initial_state=last, return_state=return_state, **context)
    means, last = outputs_and_state(results, return_state)
    q_mean, k_mean = jnp.split(means.astype(q.dtype).reshape(batch, length, 2 * heads, width), 2, axis=2)
    how: dict[str, Any] = {"initial_state": None if state is None else state.piece}
    how |= {"segment_ids": segment_ids, "mask": mask, "implementation": implementation}
    readout = softmax_attention(q_mean, k, v, left=size - 1, **how)

    def same(i: Array, j: Array) -> Array:
        return i // size == j // size

    def earlier(i: Array, j: Array) -> Array:
        return j // size < i // size

    results = softmax_attention(
        q, k, v, left=size - 1, allowed=same, return_log_sum=True, return_state=return_state, **how
    )
    near, ring = outputs_and_state(results, return_state)

    if state is None and length < size:  # no landmark; the gradient of an empty update fails
        return near[0]
    keys, values, index, fits = _landmarks(k_mean, readout, call.tokens, size, state)
    chosen = "reference" if implementation == "reference" else "xla"
    options = AttentionOptions(True, None, width**-0.5, earlier, return_log_sum=True, chosen=chosen)
    far_keys, far_values = keys.astype(k.dtype), values.astype(v.dtype)
    far = attend_in_blocks(q, far_keys, far_values, call.tokens, index, options)
    y = merge_attention(near, (far[0], far[1] + math.log(size)))
    if state is not None:
        y = nan_unless(fits[:, None, None, None], y)
    return (y, LandmarkState(last, ring, keys, values, index, call.after)) if return_state else y


def _landmarks(
    means: Float[Array, "B N H K"],
    readouts: Float[Array, "B N H V"],
    positions: TokenPositions,
    size: int,
    state: LandmarkState | None,
) -> tuple[Array, Array, Array, Array]:
    """Return keys, values and indices of all landmarks, the state's first, and the rows that fit."""
    batch, length = means.shape[:2]
    if state is None:
        slots = length // size
        keys, values = (jnp.zeros((batch, slots, *x.shape[2:]), x.dtype) for x in (means, readouts))
        index = jnp.full((batch, slots), -1, jnp.int32)
    else:
        keys, values, index = state.keys, state.values, state.index
    ends = jnp.broadcast_to(positions.positions % size == size - 1, (batch, length))
    if positions.mask is not None:
        ends &= positions.mask
    slot = jnp.sum(index >= 0, axis=1, keepdims=True) + jnp.cumsum(ends, axis=1)
    fits = slot[:, -1] <= index.shape[1]
    at = jnp.where(ends, slot - 1, index.shape[1])  # out of range: dropped
    now = jnp.broadcast_to(positions.index, (batch, length))
    keys, values, index = (
        set_rows(old, at, new.astype(old.dtype))
        for old, new in ((keys, means), (values, readouts), (index, now))
    )
    return keys, values, index, fits


def _chunk_means(x: Float[Array, "B H N K"], count: int) -> Float[Array, "B H M K"]:
    """Return the means of `count` chunks of about equal length, the shorter ones first."""
    length = x.shape[2]
    size, longer = divmod(length, count)
    border = (count - longer) * size

    def means(x: Array, size: int) -> Array:
        return x.reshape(*x.shape[:2], -1, size, x.shape[-1]).mean(axis=3)

    parts = [means(x[:, :, :border], size)]
    if longer:
        parts.append(means(x[:, :, border:], size + 1))
    return jnp.concatenate(parts, axis=2)


def _lower_softmax(q: Float[Array, "B H N K"], k: Float[Array, "B H M K"]) -> Float[Array, "B H N M"]:
    """Return softmax(q k^T) over the columns up to the row's index."""
    scores = q @ k.swapaxes(-1, -2)
    return jax.nn.softmax(jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf), axis=-1)
