"""Conv-basis attention: columns of scores that share a kernel (Gu et al., "Conv-Basis").

    y_i = sum_{j <= i} softmax_j(scale q_{s + i - j} . k_s) v_j,     s the start of j's segment, s <= j

`starts` divide a text's positions into segments. In a segment all columns of the score matrix are
approximated by the first one, its anchor, shifted down the diagonal: k segments need k columns of scores, and
k convolutions (definition 3.11), by FFT in O(k N V log N) multiplications (algorithm 1, theorem 4.4).
If scores differ from the true ones by at most eps, outputs differ by at most 2 tanh(eps / 2) max|v| (sharper
than the paper's lemma D.4); with a start at every position they are those of softmax attention (corollary
4.5). Scores that depend on content rather than distance need nearly as many segments as tokens.

Fixed starts are causal, up to the rounding of an FFT. Starts found in a text depend on all of it. Decoding is
ours: the paper has whole texts only, without packed rows or padding.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from based_jax.ops.attention_to_keys import visible_keys
from based_jax.ops.conv_basis.conv_attention_fft import (
    BLOCK,
    attend_by_fft,
    blocks,
    joined,
    scores_at,
    segment_at,
    softmax_where,
    with_gradient_of,
)
from based_jax.ops.conv_basis.conv_basis import conv_recover
from based_jax.ops.core.arrays import accumulation_dtype, checkpoint, map_rows, set_rows, with_gradient
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.kv_cache import expect_capacity, nan_where_outgrown, put, slot_index
from based_jax.ops.core.op import (
    body,
    expect_qkv,
    expect_scale,
    expect_state,
    expect_state_to_return,
    op,
    stateful_op,
    with_number,
)
from based_jax.ops.core.sharding import own_settings
from based_jax.ops.core.stream import Continuation, Stream, TokenPositions, continue_from, init_stream
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import INT32_MAX, expect, expect_array, expect_choice, expect_range

GRADIENTS = ("surrogate", "anchors")

LAGS = 8
"""Scores of a column that are compared with its neighbour's if no starts are given."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConvAttentionState:
    """Values of the last W tokens, and kernels of each row's current document; keys of anchors only."""

    v: Float[Array, "B W H V"]
    """a ring buffer"""
    anchors: Float[Array, "B A H K"]
    """the keys at the document's starts so far"""
    kernels: Float[Array, "B H A W"]
    """scores by lag, up to the document's length; float32 (float64 for float64 inputs)"""
    stream: Stream

    @property
    def slots(self) -> int:
        """W, the capacity in tokens."""
        return self.v.shape[1]


def init_conv_attention_state(
    batch_size: int,
    slots: int,
    segments: int,
    num_heads: int,
    key_size: int,
    value_size: int,
    dtype: Any = jnp.float32,
) -> ConvAttentionState:
    """Return the state before the first token.

    Args:
        slots: maximum tokens of a row.
        segments: number of starts.
        dtype: dtype of values and anchors.
    """
    dtype = jnp.dtype(dtype)
    scores = jnp.float64 if dtype == jnp.float64 else jnp.float32
    return ConvAttentionState(
        v=jnp.zeros((batch_size, slots, num_heads, value_size), dtype),
        anchors=jnp.zeros((batch_size, segments, num_heads, key_size), dtype),
        kernels=jnp.zeros((batch_size, num_heads, segments, slots), scores),
        stream=init_stream(batch_size),
    )


Starts = tuple[int, ...] | Int[Array, "B H A"]


@stateful_op("xla", "reference", reads_values=True, rows=("q", "k", "v", "segment_ids", "mask"))
def conv_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    num_bases: int | None = None,
    starts: Starts | None = None,
    scale: Scale | None = None,
    *,
    gradient: str = "surrogate",
    initial_state: ConvAttentionState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], ConvAttentionState]:
    """Attend causally with one kernel of scores per segment, in float32 (float64 for float64 values).

    Returns y, (B, N, H, V); outputs at masked tokens are finite but meaningless. All outputs of a row that
    exceeds its state's capacity are NaN: under `jit` no error can be raised. Shared arguments, results and
    errors: `help(based_jax.ops)`.

    Args:
        q, k, v: queries, keys, values.
        num_bases: number of segments. Without `starts` they begin at 0 and where neighbouring columns differ
            most at their first lags, searched in the whole text, later tokens included. This search has no
            threshold; `conv_recover` has the paper's, with a threshold.
        starts: positions in a document at which segments begin, ascending from 0; the last segment has no
            end. A tuple applies to all rows and heads, and starts after the text have no effect. An array has
            the starts of each row and head; an empty segment begins after the text.
        scale: factor of the scores; None for K^(-1/2).
        gradient: gradient of the scores, for q and k. "surrogate" is that of softmax attention at the
            computed weights: dS_ij = w_ij (dy_i . v_j - dy_i . y_i) for all pairs of tokens (the paper's
            section 5), which is exact if the scores have this basis. "anchors" differentiates the actual
            computation: only keys at starts have a gradient. The two differ even where the outputs equal
            those of attention. The gradient of v is the same.
        initial_state: continue from here, with the same `starts`, as many as the state was made for.
        return_state: needs `initial_state`.
        segment_ids: separate documents, whose positions count from 0. Packed rows compute all N^2 scores.
        implementation: "reference" (all scores), "xla" (by FFT if that takes fewer operations than all pairs
            in blocks of rows; always the latter after a state), or None for the best.

    Raises:
        ValueError: a text longer than the state, if lengths are known; the surrogate gradient through a
            state, which has no keys.
    """
    chosen = choose("conv_attention", q, k, v, implementation=implementation)
    batch, length, heads, width, value_size = expect_qkv(q, k, v)
    expect_choice("gradient", gradient, GRADIENTS)
    state = initial_state
    expect_state_to_return(state, return_state)
    at = None if starts is None else _expect_starts(starts, batch, heads)
    count = num_bases or 0 if at is None else at.shape[-1]
    if at is not None:
        expect(num_bases in (None, count), "num_bases", num_bases, f"None or {count}, the number of starts")
    else:
        for name, value in (("initial_state", state), ("segment_ids", segment_ids)):
            expect(value is None, "starts", starts, f"the starts of each document with {name}")
        is_possible = 1 <= count <= length
        expect(is_possible, "num_bases", num_bases, f"1 to {length} segments, if no starts are given")
    if state is not None:
        expect_state(state, v=(batch, "W", heads, value_size), anchors=(batch, count, heads, width))
        expect_state(state, kernels=(batch, heads, count, state.v.shape[1]))
        what = f"max_length = {state.slots} tokens, the size of the state"
        expect_capacity(state.stream, length, mask, state.slots, what)
    reached = sum(start < length for start in starts) if isinstance(starts, tuple) else count
    q, factor = with_number(q, expect_scale(scale, width))
    how = _Resolved(count, reached, factor, gradient, chosen)
    return _attention(q, k, v, at, how, state, return_state, segment_ids, mask)


class _Resolved(NamedTuple):
    """Options of `conv_attention`, with defaults in place of None."""

    terms: int
    """number of starts"""
    reached: int
    """number of starts in a text of this length"""
    scale: float
    gradient: str
    chosen: str


@op()
def _attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    at: Int[Array, "rows heads A"] | None,
    how: _Resolved,
    state: ConvAttentionState | None,
    return_state: bool,
    segment_ids: Int[Array, "B N"] | None,
    mask: Bool[Array, "B N"] | None,
) -> Any:
    """Compute `conv_attention` after its arguments are checked; `at` are the starts, or None."""
    batch, length = q.shape[:2]
    call = continue_from(state, batch, length, segment_ids, mask)
    q, k, v = call.unpadded((q, k, v))

    dtype = accumulation_dtype(v)
    scaled = q.astype(dtype) * how.scale
    if at is None:
        width = min(LAGS, length)
        search: dict[str, Any] = {"terms": how.terms, "width": width, "threshold": 0.0, "search": "largest"}
        at = body(conv_recover)(scaled, k, mask=mask, **search)
    q, k, values = (x.astype(dtype).transpose(0, 2, 3, 1) for x in (scaled, k, v))

    moved = None
    if state is not None:
        y, moved = _continue(q, k, values, v, at, state, call, how)
    elif how.chosen == "reference" or segment_ids is not None:
        y = _attend_pairs(q, k, values, at, call.tokens, how)
    else:
        real = jnp.ones((1, length), bool) if mask is None else mask
        y = attend_by_fft(q, k, values, at[..., : how.reached], real, how.gradient)
    y = y.transpose(0, 3, 1, 2).astype(v.dtype)
    return (y, moved) if return_state else y


def _expect_starts(starts: Starts, batch: int, heads: int) -> Int[Array, "rows heads A"]:
    """Check the starts, and their values if they are known; return them as an array."""
    if isinstance(starts, tuple):
        rises = all(isinstance(start, int) for start in starts) and np.all(np.diff(starts) > 0)
        expect(starts[:1] == (0,) and bool(rises), "starts", starts, "integers ascending from 0")
        expect_range("starts", starts[-1], 0)
        with own_settings():
            return jnp.asarray(starts, jnp.int32)[None, None]
    expect_array("starts", starts, (batch, heads, "A"), "integer")
    if not isinstance(starts, Tracer):
        known = np.asarray(starts)
        rises = not known[..., 0].any() and (np.diff(known) >= 0).all()
        expect(bool(rises), "starts", known.tolist(), "integers ascending from 0 in each row and head")
    return jnp.asarray(starts, jnp.int32)


def _attend_pairs(
    q: Array, k: Array, v: Array, at: Array, tokens: TokenPositions, how: _Resolved
) -> Float[Array, "B H V N"]:
    """Attend to all pairs of tokens of a call without a state."""
    index, start = tokens.index, jnp.broadcast_to(tokens.start, (tokens.start.shape[0], q.shape[-1]))
    key_index = index if tokens.mask is None else jnp.where(tokens.mask, index, -1)
    visible = visible_keys(index, start, key_index, None)
    weights = softmax_where(visible[:, None], _pair_scores(q, k, at, index, start, how.gradient))
    return jnp.einsum("bhnm,bhvm->bhvn", weights, v)


def _pair_scores(
    q: Array, k: Array, at: Array, index: Int[Array, "rows N"], start: Int[Array, "rows N"], gradient: str
) -> Float[Array, "B H N N"]:
    """Return the scores of the call's tokens, for documents that begin anywhere.

    The score of (i, j) is the true one of (i - j + a, a), where a is the anchor of column j.
    `index` counts from 0; `start` is that of the documents, negative if before the call.
    """
    length = q.shape[-1]
    expect(length**2 <= INT32_MAX, "N", length, "at most 46340 tokens, to index all pairs in int32")
    true = jnp.einsum("bhkn,bhkm->bhnm", q, k)
    position = (index - start)[:, None]
    anchor = start[:, None] + jnp.take_along_axis(at, segment_at(at, position), axis=-1)
    row = (index[:, :, None] - index[:, None])[:, None] + anchor[:, :, None]
    entry = jnp.clip(row * length + anchor[:, :, None], 0, length**2 - 1)
    flat = true.reshape(*true.shape[:2], -1)
    scores = jnp.take_along_axis(flat, entry.reshape(*entry.shape[:2], -1), axis=-1).reshape(true.shape)
    return with_gradient_of(true, scores) if gradient == "surrogate" else scores


def _continue(
    q: Float[Array, "B H K N"],
    k: Float[Array, "B H K N"],
    v: Float[Array, "B H V N"],
    cached: Float[Array, "B N H V"],
    at: Int[Array, "rows heads A"],
    state: ConvAttentionState,
    call: Continuation,
    how: _Resolved,
) -> tuple[Array, ConvAttentionState]:
    """Attend with a state: by kernels in the continued document, by pairs in documents that begin here.

    `cached` is v as stored in the state. Rows of a long chunk of one document are processed in blocks.
    """
    batch, _, _, length = q.shape
    before, stream = state.stream, call.after
    index, start = (jnp.broadcast_to(x, (batch, length)) for x in (call.tokens.index, call.tokens.start))
    real = jnp.ones((batch, length), bool) if call.mask is None else call.mask
    goes_on = real & (start == before.start[:, None])
    anchors, kernels = _extend(state.anchors, state.kernels, q, k, at, index - before.start[:, None], goes_on)

    ring = put(state.v, cached, call.tokens, stream)
    keys, key_index = ring.astype(v.dtype), slot_index(stream.length, state.slots)
    of_key = segment_at(at, (key_index - before.start[:, None])[:, None])

    def rows(index: Array, start: Array, own: Array | None = None) -> Array:
        visible = visible_keys(index, start, key_index, None)
        scores = scores_at(kernels, of_key, index[:, :, None] - key_index[:, None])
        scores = scores if own is None else jnp.where(goes_on[:, None, :, None], scores, own)
        scores = _without_gradient(scores) if how.gradient == "surrogate" else scores
        return jnp.einsum("bhnm,bmhv->bhvn", softmax_where(visible[:, None], scores), keys)

    if call.start is not None and length > 1:
        first = before.length[:, None]
        own = _pair_scores(q, k, at, index - first, start - first, "anchors")
        column = jnp.clip(key_index - first, 0, length - 1)[:, None, None]
        y = rows(index, start, jnp.take_along_axis(own, column, axis=-1))
    elif length <= BLOCK:
        y = rows(index, start)
    else:
        parts = blocks(index)[1], blocks(start)[1]
        y = joined(map_rows(checkpoint(lambda part: rows(*part)), parts), length)
    if call.start is not None:
        last = real & (start == stream.start[:, None])
        anchors, kernels = _extend(anchors, kernels, q, k, at, index - stream.start[:, None], last)
    moved = ConvAttentionState(ring, anchors, kernels, stream)
    return nan_where_outgrown(moved, y), moved


def _extend(
    anchors: Array, kernels: Array, q: Array, k: Array, at: Array, position: Array, own: Array
) -> tuple[Array, Array]:
    """Return anchors and kernels of one document per row, updated by the call's tokens in it (`own`).

    Remains of an earlier document are at lags and starts that no token has reached yet.
    position: (B, N) in the document.
    """
    batch, heads, _, length = q.shape
    here = jnp.broadcast_to(at, (batch, heads, at.shape[-1])) - position[:, None, :1]
    column = jnp.clip(here, 0, length - 1)
    reached = (here == column) & jnp.take_along_axis(own[:, None], column, axis=-1)
    new = jnp.take_along_axis(k, column[:, :, None], axis=-1).transpose(0, 3, 1, 2)
    anchors = jnp.where(reached.transpose(0, 2, 1)[..., None], new.astype(anchors.dtype), anchors)

    scores = jnp.einsum("bahk,bhkn->bhan", anchors.astype(q.dtype), q)
    lag = position[:, None, None] - at[..., None]
    lag = jnp.where(own[:, None, None] & (lag >= 0), lag, kernels.shape[-1])  # out of range: dropped
    lag = jnp.broadcast_to(lag, scores.shape)
    return anchors, jax.vmap(jax.vmap(set_rows))(kernels, lag, scores.astype(kernels.dtype))


def _refuse(_kept: Any, _gradient: Any) -> Any:
    expected = "'anchors' to differentiate through a state, which has no keys"
    raise ValueError(f"gradient = 'surrogate': expected {expected}")


def _keep_nothing(scores: Array) -> tuple[Array, None]:
    return scores, None


@with_gradient(_keep_nothing, _refuse)
def _without_gradient(scores: Array) -> Array:
    return scores
