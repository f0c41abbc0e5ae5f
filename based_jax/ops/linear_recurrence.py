"""Linear recurrences with a matrix state and a decay: GLA, RetNet, Mamba-2, RWKV-5, Based with decay.

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,     y_t = S_t^T q_t
    with a bonus u (RWKV-5):                      y_t = (S_{t-1} + diag(u) k_t v_t^T)^T q_t

g_t <= 0 holds one log-gate per head or one per key channel. There are two forms: the recurrence token by
token is the definition; the chunked form works on pairs inside a chunk and carries S between chunks (GLA,
Yang et al. 2023, section 4; products of gates are formed as in `core/decay.py`).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pallas_kernels
from based_jax.ops.core import decay
from based_jax.ops.core.arrays import accumulation_dtype, cast, checkpoint, kernel_precision
from based_jax.ops.core.chunks import (
    ChunkMask,
    begins,
    chunk_mask,
    heads_first,
    join_tokens,
    scan_chunks,
    scan_tokens,
    split_chunks,
)
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.op import expect_chunk_size, expect_scale, expect_state, stateful_op, with_number
from based_jax.ops.core.platforms import platform_of
from based_jax.ops.core.stream import Continuation, Stream, continue_from, init_stream
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import expect, expect_array, expect_divisible

Tokens = tuple[Array, Array, Array, Any]
"""q, scaled, and k, (B, N, G, K); v, (B, N, H, V); log_decay, (B, N, H, channels), or None"""

CHUNK = 64
"""Tokens per chunk."""

CHUNKS_ON_GPU = 32
"""Chunks that a GPU processes at once, states aside: in a scan, a training step of one GLA layer (16 x 2,048
tokens) is 2,000 short kernels instead of 500."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearRecurrenceState:
    """The decayed sum over the tokens of each row's current segment; float32 (float64 for float64 inputs)."""

    kv: Float[Array, "B H K V"]
    stream: Stream


def init_linear_recurrence_state(
    batch_size: int, num_heads: int, key_size: int, value_size: int, dtype: Any = jnp.float32
) -> LinearRecurrenceState:
    """Return the state before the first token; `dtype` is float32, or float64 for a float64 computation."""
    kv = jnp.zeros((batch_size, num_heads, key_size, value_size), dtype)
    return LinearRecurrenceState(kv, init_stream(batch_size))


def fixed_log_decay(num_heads: int, exponent: float = -5.0) -> Float[Array, " H"]:
    """Return log(1 - 2^(exponent - h)) of head h, RetNet's multi-scale decay (Sun et al. 2023, eq. 8)."""
    expect(exponent < 0, "exponent", exponent, "below 0")
    return jnp.asarray(np.log1p(-(2.0 ** (exponent - np.arange(num_heads)))))


KERNEL_FROM = 16
"""Fewest tokens for which None picks the kernel, those of its smallest chunk."""


def supports_kernel(kernel: str, q: Array, k: Array, v: Array) -> str | None:
    """Return why the kernel cannot take these arrays, or None."""
    return pallas_kernels.supports_linear_recurrence(q, k, v)


def fastest_recurrence(found: str, q: Array, k: Array, v: Array) -> str:
    """Return `found` but for a few tokens."""
    return "xla" if q.shape[1] < KERNEL_FROM else found


def refused(state: Any, **arrays: Array) -> str | None:
    """Return why the kernel cannot go on from a state, or take other arrays, or None."""
    if state is not None and state.kv.dtype != jnp.float32:
        return f"the kernel takes no {state.kv.dtype} state"
    wide = [name for name, array in arrays.items() if array.dtype == jnp.float64]
    return f"the kernel takes no float64 {wide[0]}" if wide else None


@stateful_op(
    "pallas",
    "xla",
    "reference",
    supports=supports_kernel,
    fastest=fastest_recurrence,
    tokens=("q", "k", "v", "log_decay", "segment_ids", "mask"),
)
def linear_recurrence(
    q: Float[Array, "B N G K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N H V"],
    log_decay: Float[Array, "rows steps H *channels"],
    *,
    bonus: Float[Array, "H K"] | None = None,
    scale: Scale | None = None,
    initial_state: LinearRecurrenceState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LinearRecurrenceState]:
    """Read a decaying sum of k v^T with q; return y, (B, N, H, V).

    Shared arguments, results and errors: `help(based_jax.ops)`. Outputs at masked tokens are 0.

    Args:
        q, k: queries and keys; G heads, each shared by H / G neighbouring heads of v.
        v: values.
        log_decay: logarithm of the factor that each token applies to the sum before it, <= 0: (B, N, H) or
            (B, N, H, K); the first two axes may be 1.
        bonus: weight per head and channel of a token's own key and value, which are then read before they
            are added to the sum; None reads them from the sum.
        scale: factor of the outputs; default K^(-1/2).
        chunk_size: tokens per chunk of "xla"; default 64. "reference" goes token by token.
        implementation: "pallas", the fused GPU kernel (K up to 256); "xla"; "reference"; or None for the
            best: from 16 tokens on the kernel where it can, else "xla".
    """
    expect_array("q", q, ("B", "N", "G", "K"), "floating")
    batch, length, groups, width = q.shape
    expect_array("k", k, q.shape, "floating")
    expect_array("v", v, (batch, length, "H", "V"), "floating")
    heads, value_size = v.shape[2:]
    expect_divisible("heads of v", heads, "heads of q and k", groups)
    decay.expect_log_decay(log_decay, batch, length, (heads,), (heads, width))
    if bonus is not None:
        expect_array("bonus", bonus, (heads, width), "floating")
    expect_state(initial_state, kv=(batch, heads, width, value_size))
    chunk_size = expect_chunk_size(chunk_size, CHUNK)
    unsupported = refused(initial_state)
    factor = expect_scale(scale, width)
    chosen = choose("linear_recurrence", q, k, v, implementation=implementation, unsupported=unsupported)
    if chosen == "pallas":
        how = factor, initial_state, return_state, segment_ids, mask
        return fused_recurrence((q, k, v, log_decay), *how, bonus=bonus)

    dtype = accumulation_dtype(v)
    state = initial_state or init_linear_recurrence_state(batch, heads, width, value_size, dtype)
    call = continue_from(initial_state, batch, length, segment_ids, mask)
    gates = log_decay.astype(dtype) if log_decay.ndim == 4 else log_decay.astype(dtype)[..., None]
    rows = gates.shape[0] if mask is None else batch  # rows may share the products of fixed gates
    gates = jnp.broadcast_to(gates, (rows, length, *gates.shape[2:]))
    queries, keys, values, gates = cast(call.unpadded((q, k, v, gates)), dtype)
    tokens = (queries * factor, keys, values, gates)
    own = None if bonus is None else bonus.astype(dtype)

    def run(kv: Array) -> tuple[Array, Array]:
        if chosen == "reference":
            return token_by_token(tokens, kv, call.start, own)
        return _chunked(tokens, own, kv, call, chunk_size)

    def operator() -> Array:
        return call.kept(jnp.exp(gates.sum(axis=1)))[..., None]

    y, kv = run(call.prefix(run, state.kv.astype(dtype), operator, jnp.multiply))
    y = y.astype(v.dtype)
    return (y, LinearRecurrenceState(kv, call.after)) if return_state else y


def fused_recurrence(
    arrays: Tokens,
    scale: Scale,
    state: LinearRecurrenceState | None,
    return_state: bool,
    segment_ids: Array | None,
    mask: Array | None,
    *,
    bonus: Float[Array, "H K"] | None = None,
    beta: Float[Array, "B N H"] | None = None,
    low_rank: tuple[Array, Array] | None = None,
) -> Any:
    """Run the kernel, with `beta` by the delta rule; `low_rank`, a and b, adds b a^T to the transition.

    A masked token of zeros keeps the state.
    """
    q, k, v, log_decay = arrays
    (batch, length, groups, width), (heads, value_size) = q.shape, v.shape[2:]
    log_decay = jnp.zeros((1, 1, heads)) if log_decay is None else log_decay
    if log_decay.ndim == 3 and not (bonus is None and low_rank is None):
        log_decay = jnp.broadcast_to(log_decay[..., None], (*log_decay.shape, width))
    q, factor = with_number(q, scale)
    call = continue_from(state, batch, length, segment_ids, mask)
    gates = jnp.broadcast_to(log_decay.astype(jnp.float32), (batch, length, *log_decay.shape[2:]))
    tokens, erasing = call.unpadded(((q, k, v, gates), {"beta": beta, "low_rank": low_rank}))
    queries, keys, values, gates = tokens
    options: dict[str, Any] = {
        "starts": None if call.start is None else jnp.broadcast_to(call.start, (batch, length)),
        "scale": factor,
        "inclusive": bonus is None,
        "precision": kernel_precision(),
    }
    options |= erasing
    erases = not (beta is None and low_rank is None)

    def run(kv: Array) -> tuple[Array, Array]:
        return pallas_kernels.linear_recurrence(queries, keys, values, gates, kv, **options)

    def operator() -> Array:
        """Return the decay, or if tokens erase the result for a unit matrix when nothing is written."""
        if not erases:
            channels = gates if gates.ndim == 4 else gates[..., None]
            return call.kept(jnp.exp(channels.sum(axis=1)))[..., None]
        unit = jnp.broadcast_to(jnp.eye(width, dtype=jnp.float32), (batch, heads, width, width))
        silent = queries, keys, jnp.zeros_like(keys)
        return pallas_kernels.linear_recurrence(*silent, gates, unit, **options)[1]

    empty = init_linear_recurrence_state(batch, heads, width, value_size)
    apply = product if erases else jnp.multiply
    y, kv = run(call.prefix(run, (state or empty).kv, operator, apply))
    if bonus is not None:
        weights = bonus.astype(jnp.float32).reshape(groups, -1, width)
        own = jnp.sum((factor * queries.astype(jnp.float32) * keys)[..., None, :] * weights, axis=-1)
        y = (y + own.reshape(batch, length, heads, 1) * values).astype(v.dtype)
    return (y, LinearRecurrenceState(kv, call.after)) if return_state else y


def product(operator: Float[Array, "... K K"], kv: Float[Array, "... K V"]) -> Float[Array, "... K V"]:
    """Apply a transition, which need not shrink, with float32's digits."""
    return jnp.matmul(operator, kv, precision="highest")


def decayed_chunk(
    q: Float[Array, "... C K"],
    k: Float[Array, "... C K"],
    v: Float[Array, "... C V"],
    log_decay: Float[Array, "... C channels"],
    kv: Float[Array, "... K V"],
    visibility: ChunkMask,
    scores: Float[Array, "... C C"] | None = None,
    bonus: Float[Array, "... 1 K"] | None = None,
) -> tuple[Float[Array, "... C V"], Float[Array, "... K V"]]:
    """Process one chunk, starting from the sum `kv`; return outputs and the sum after the chunk.

    All but `kv` may have a first axis of consecutive chunks; the result is then the sum after the last.
    Gates are per head (last axis 1) or per channel; with gates per head the scores q k^T may be given. With a
    `bonus` the visibility has no diagonal.
    """
    inclusive = bonus is None
    if scores is None:
        products = decay.pair_products(q, k, log_decay, inclusive)
    else:
        products = scores * decay.between(log_decay[..., 0], inclusive)
    before, after = _advance(
        kv,
        decay.across(log_decay)[..., None],
        visibility.entering(k * decay.until_end(log_decay)).mT @ v,
        visibility,
    )
    y = jnp.where(visibility.visible, products, 0) @ v
    y = y + visibility.reading((q * decay.since_start(log_decay, inclusive)) @ before)
    if bonus is not None:
        y = y + jnp.sum(q * bonus * k, axis=-1, keepdims=True) * v
    return y, after


def _advance(
    kv: Float[Array, "... K V"], decayed: Array, added: Float[Array, "... K V"], visibility: ChunkMask
) -> tuple[Float[Array, "... K V"], Float[Array, "... K V"]]:
    """Return the sum before each chunk, and after the last."""

    def step(kv: Array, chunk: tuple[Array, Array, ChunkMask]) -> tuple[Array, Array]:
        decayed, added, visibility = chunk
        return decayed * visibility.kept(kv) + added, kv

    if added.ndim == kv.ndim:
        return kv, step(kv, (decayed, added, visibility))[0]
    after, before = lax.scan(step, kv, (decayed, added, visibility))
    return before, after


def _chunked(
    tokens: Tokens, bonus: Array | None, kv: Array, call: Continuation, chunk_size: int
) -> tuple[Array, Array]:
    q, _, v, _ = tokens
    groups, heads = q.shape[2], v.shape[2]

    def grouped(x: Array) -> Array:
        """Split (B, H, ...) into (B, G, H / G, ...); queries and keys get an axis of size 1."""
        return x.reshape(x.shape[0], groups, -1, *x.shape[2:])

    own = None if bonus is None else grouped(bonus[None, :, None])

    def prepared(chunk: Any, start: Array | None, mask: Array | None) -> tuple[list[Array], ChunkMask]:
        arrays = [grouped(heads_first(x)) for x in chunk]
        return arrays, chunk_mask(arrays[0].shape[-2], start, mask, head_axes=2, diagonal=own is None)

    def outputs(y: Array, mask: Array | None) -> Array:
        y = heads_first(y.reshape(y.shape[0], heads, *y.shape[3:]))
        return y if mask is None else jnp.where(mask[..., None, None], y, 0)

    def step(kv: Array, chunk: Any, start: Array | None, mask: Array | None) -> tuple[Array, Array]:
        (q, k, v, log_decay), visibility = prepared(chunk, start, mask)
        y, kv = decayed_chunk(q, k, v, log_decay, kv, visibility, bonus=own)
        return outputs(y, mask), kv

    def steps(kv: Array, chunk: Any, start: Array | None, mask: Array | None) -> tuple[Array, Array]:
        chunks = split_chunks(chunk, start, mask, chunk_size)
        (q, k, v, log_decay), visibility = jax.vmap(prepared)(*chunks)
        y, kv = decayed_chunk(q, k, v, log_decay, kv, visibility, bonus=own)
        return join_tokens(jax.vmap(outputs)(y, chunks[2]), chunk[0].shape[1]), kv

    size = chunk_size
    if v.shape[1] > chunk_size and platform_of([v]) == "gpu":
        step, size = checkpoint(steps), chunk_size * CHUNKS_ON_GPU
    y, new = scan_chunks(step, grouped(kv), tokens, chunk_size=size, start=call.start, mask=call.mask)
    return y, new.reshape(kv.shape)


def token_by_token(
    tokens: Tokens,
    kv: Array,
    start: Int[Array, "rows N"] | None,
    bonus: Array | None = None,
    low_rank: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Run the recurrence; `low_rank`, a and b, adds b a^T to the transition, as in `delta_rule`.

    A token of zeros keeps the state and reads 0, so no mask is needed.
    """
    q, k, v, log_decay = tokens
    q, k = (jnp.repeat(x, v.shape[2] // x.shape[2], axis=2) for x in (q, k))

    def token(kv: Array, inputs: Any) -> tuple[Array, Array]:
        (q, k, v, log_decay), low_rank, first = inputs
        old = jnp.where(first[:, None, None, None], 0, kv)
        added = k[..., :, None] * v[..., None, :]
        new = (old if log_decay is None else jnp.exp(log_decay)[..., None] * old) + added
        if low_rank is not None:
            a, b = low_rank
            held = jnp.einsum("bhk,bhkv->bhv", a, old, precision="highest")
            new = new + b[..., None] * held[..., None, :]
        read = new if bonus is None else old + bonus[..., None] * added
        return new, jnp.einsum("bhk,bhkv->bhv", q, read)

    return scan_tokens(token, kv, ((q, k, v, log_decay), low_rank, begins(start, *v.shape[:2])))
