"""Linear recurrences with a matrix state and a decay: GLA, RetNet, Mamba-2, RWKV-5, Based with decay.

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,     y_t = S_t^T q_t
    with a bonus u (RWKV-5):                      y_t = (S_{t-1} + diag(u) k_t v_t^T)^T q_t

g_t <= 0 holds one log-gate per head or one per key channel. Two forms: the recurrence token by token is the
specification; the chunked one works on pairs inside a chunk and carries S between chunks (GLA, Yang et al.
2023, section 4; the gates' products are formed as in `decay.py`).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.ops import context_parallel, decay
from based_jax.ops.chunks import Sight, heads_first, relative_start, scan_chunks, sight
from based_jax.ops.dispatch import implementation_for
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.eager import compiled
from based_jax.ops.registration import open_to_others
from based_jax.ops.stream import Stream, advance, init_stream, stays, stream_of, unpadded
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array, expect_divisible

CHUNK = 64
"""Tokens per chunk, a multiple of `decay.BLOCK`."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearRecurrenceState:
    """The decayed sum over the tokens of each row's current segment; float32 (float64 for float64 inputs)."""

    kv: Float[Array, "B H K V"]
    stream: Stream


def init_linear_recurrence_state(
    batch_size: int, num_heads: int, key_size: int, value_size: int, dtype: Any = jnp.float32
) -> LinearRecurrenceState:
    """The state before the first token; `dtype` is float32, or float64 for a float64 computation."""
    kv = jnp.zeros((batch_size, num_heads, key_size, value_size), dtype)
    return LinearRecurrenceState(kv, init_stream(batch_size))


def fixed_log_decay(num_heads: int, exponent: float = -5.0) -> Float[Array, " H"]:
    """log(1 - 2^(exponent - h)) of head h: RetNet's multi-scale decay (Sun et al. 2023, equation 8)."""
    return jnp.asarray(np.log1p(-(2.0 ** (exponent - np.arange(num_heads)))))


@open_to_others
@context_parallel.splits("q", "k", "v", "log_decay", "segment_ids", "mask")
@compiled
def linear_recurrence(
    q: Float[Array, "B N G K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N H V"],
    log_decay: Float[Array, "rows steps H *channels"],
    *,
    bonus: Float[Array, "H K"] | None = None,
    scale: float | None = None,
    initial_state: LinearRecurrenceState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Any:
    """Read a decaying sum of k v^T with q.

    Args:
        q, k: queries and keys; G heads, each shared by H / G neighbouring heads of v.
        v: values.
        log_decay: logarithm of what each token leaves of the sum before it, <= 0: (B, N, H) or (B, N, H, K);
            the first two axes may be 1.
        bonus: weight per head and channel of a token's own key and value, which then are read before
            they enter the sum; None reads them from the sum.
        scale: factor of the outputs; default K^(-1/2).
        initial_state: continue from here; None starts empty.
        return_state: also return the state behind the last real token.
        segment_ids: (B, N) integers; a token reads its own segment only.
        mask: (B, N) booleans, right padding: masked tokens leave outputs of others and the state alone;
            their own outputs are 0.
        chunk_size: tokens per chunk of "xla"; default 64.
        implementation: "reference" (token by token), "xla" (chunked) or None for the best.

    Returns:
        y: (B, N, H, V) in the dtype of v, or ``(y, state)`` with `return_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong shape, dtype or value, named in the message.
    """
    chosen = implementation_for("linear_recurrence", q, k, v, implementation=implementation)
    expect_array("q", q, ("B", "N", "G", "K"), "floating")
    batch, length, groups, width = q.shape
    expect_array("k", k, (batch, length, groups, width), "floating")
    expect_array("v", v, (batch, length, "H", "V"), "floating")
    heads, value_size = v.shape[2:]
    expect_divisible("heads of v", heads, "heads of q and k", groups)
    channels = () if log_decay.ndim == 3 else (width,)
    decay.expect_log_decay(log_decay, batch, length, (heads, *channels))
    if bonus is not None:
        expect_array("bonus", bonus, (heads, width), "floating")
    state = initial_state
    if state is not None:
        expect_array("initial_state.kv", state.kv, (batch, heads, width, value_size), "floating")
    expect(chunk_size is None or chunk_size >= 1, "chunk_size", chunk_size, "at least 1")

    dtype = accumulation_dtype(v)
    if state is None:
        state = init_linear_recurrence_state(batch, heads, width, value_size, dtype)
    before = stream_of(initial_state, batch, length, segment_ids, mask)
    places, stream = advance(before, batch, length, segment_ids, mask)
    start = relative_start(places, before, segment_ids)
    log_decay = log_decay if channels else log_decay[..., None]
    log_decay = jnp.broadcast_to(log_decay.astype(dtype), (batch, length, *log_decay.shape[2:]))
    q, k, v, log_decay = unpadded(mask, (q, k, v, log_decay))
    q = q.astype(dtype) * (width**-0.5 if scale is None else scale)
    compute = _reference if chosen == "reference" else _chunked

    def run(kv: Array) -> tuple[Array, Array]:
        return compute(
            q, k.astype(dtype), v.astype(dtype), log_decay, None if bonus is None else bonus.astype(dtype),
            kv, start, mask, chunk_size or CHUNK,
        )  # fmt: skip

    kv = state.kv.astype(dtype)
    if initial_state is None and before is not None:
        left = jnp.where(stays(before, stream)[:, None, None], jnp.exp(log_decay.sum(axis=1)), 0)
        kv = context_parallel.sums_before(lambda kv: run(kv)[1], kv, left[..., None], jnp.multiply)
    y, kv = run(kv)
    y = y.astype(v.dtype)
    return (y, LinearRecurrenceState(kv, stream)) if return_state else y


def decayed_chunk(
    q: Float[Array, "... C K"],
    k: Float[Array, "... C K"],
    v: Float[Array, "... C V"],
    log_decay: Float[Array, "... C channels"],
    kv: Float[Array, "... K V"],
    seen: Sight,
    scores: Float[Array, "... C C"] | None = None,
    bonus: Float[Array, "... 1 K"] | None = None,
) -> tuple[Float[Array, "... C V"], Float[Array, "... K V"]]:
    """One chunk behind the sum kv: outputs and the sum behind the chunk.

    Args:
        log_decay: one gate per head (last axis 1) or per channel.
        seen: who sees what; without the diagonal where there is a `bonus`.
        scores: q k^T, if it has been computed (gates per head only).
        bonus: as for `linear_recurrence`.
    """
    inclusive = bonus is None
    if scores is None:
        products = decay.pair_products(q, k, log_decay, inclusive)
    else:
        products = scores * decay.between(log_decay[..., 0], inclusive)
    y = jnp.where(seen.visible, products, 0) @ v
    y = y + seen.reading((q * decay.since_start(log_decay, inclusive)) @ kv)
    if bonus is not None:
        y = y + jnp.sum(q * bonus * k, axis=-1, keepdims=True) * v
    left = decay.across(log_decay)[..., None] * seen.kept(kv)
    return y, left + seen.entering(k * decay.until_end(log_decay)).mT @ v


def _chunked(q, k, v, log_decay, bonus, kv, start, mask, chunk_size):
    groups, heads = q.shape[2], v.shape[2]

    def grouped(x: Array) -> Array:
        """(B, H, ...) -> (B, G, H / G, ...); of queries and keys with an axis of size 1."""
        return x.reshape(x.shape[0], groups, -1, *x.shape[2:])

    own = None if bonus is None else grouped(bonus[None, :, None])

    def step(kv, chunk, start, mask):
        q, k, v, log_decay = (grouped(heads_first(x)) for x in chunk)
        seen = sight(q.shape[-2], start, mask, head_axes=2, diagonal=own is None)
        y, kv = decayed_chunk(q, k, v, log_decay, kv, seen, bonus=own)
        y = heads_first(y.reshape(y.shape[0], heads, *y.shape[3:]))
        return (y if mask is None else jnp.where(mask[..., None, None], y, 0)), kv

    y, new = scan_chunks(
        step, grouped(kv), (q, k, v, log_decay),
        length=q.shape[1], chunk_size=chunk_size, start=start, mask=mask,
    )  # fmt: skip
    return y, new.reshape(kv.shape)


def _reference(q, k, v, log_decay, bonus, kv, start, mask, chunk_size):
    """The recurrence as it is written, one token at a time."""
    batch, length = q.shape[:2]
    heads = v.shape[2]
    q, k = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (q, k))
    begins = jnp.zeros((batch, length), bool) if start is None else start == jnp.arange(length)
    real = jnp.ones((batch, length), bool) if mask is None else mask

    def token(kv, inputs):
        q, k, v, log_decay, begins, real = inputs
        old = jnp.where(begins[:, None, None, None], 0, kv)
        added = k[..., :, None] * v[..., None, :]
        new = jnp.exp(log_decay)[..., None] * old + added
        read = new if bonus is None else old + bonus[..., None] * added
        y = jnp.einsum("bhk,bhkv->bhv", q, read)
        return jnp.where(real[:, None, None, None], new, kv), jnp.where(real[:, None, None], y, 0)

    inputs = (q, k, v, log_decay, jnp.broadcast_to(begins, (batch, length)), real)
    kv, y = lax.scan(token, kv, jax.tree.map(lambda x: x.swapaxes(0, 1), inputs))
    return y.swapaxes(0, 1), kv
