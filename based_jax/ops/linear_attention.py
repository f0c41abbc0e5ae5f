"""Causal linear attention for any feature map: quadratic reference, chunked scan, and continuation.

    y_i = sum_{j <= i} d_ij phi(q_i).phi(k_j) v_j / (sum_{j <= i} phi(q_i).phi(k_j) + eps)

d_ij = exp(sum of log_decay over j < t <= i), 1 without decay; the normaliser is never decayed (Based v2,
Appendix C). There are three equivalent forms (Based, section 4.1): the quadratic form is the definition; the
chunked form carries the sums S = sum phi(k) v^T and z = sum phi(k) between chunks, so time and memory are
linear in the length; with one token per call it is the recurrence.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax.ops.core.arrays import accumulation_dtype, cast
from based_jax.ops.core.chunks import chunk_mask, heads_first, scan_chunks
from based_jax.ops.core.decay import expect_log_decay
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.op import expect_chunk_size, expect_number, expect_qkv, expect_state, stateful_op
from based_jax.ops.core.stream import Continuation, Stream, continue_from, init_stream, outputs_and_state
from based_jax.ops.feature_maps import IDENTITY, FeatureMap, expect_feature_map
from based_jax.ops.linear_recurrence import (
    LinearRecurrenceState,
    decayed_chunk,
    fastest_recurrence,
    fused_recurrence,
    refused,
    supports_kernel,
)
from based_jax.typing import Array, Bool, Float, Int

Sums = tuple[Float[Array, "B H F V"], Float[Array, "B H F"]]
"""kv and k of a state"""

CHUNK = 128
"""Tokens per chunk of the scan. On a CPU (B 2, N 8192, H 4) forward plus backward took 238 ms with 128 and
261 ms with 64; forward alone 93 and 79 ms."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearAttentionState:
    """Sums over the tokens of each row's current segment; float32 (float64 for float64 inputs)."""

    kv: Float[Array, "B H F V"]
    """sum of phi(k) v^T, decayed"""
    k: Float[Array, "B H F"]
    """sum of phi(k)"""
    stream: Stream


def init_linear_attention_state(
    batch_size: int, num_heads: int, feature_size: int, value_size: int, dtype: Any = jnp.float32
) -> LinearAttentionState:
    """Return the state before the first token; `dtype` is float32, or float64 for a float64 computation."""
    return LinearAttentionState(
        kv=jnp.zeros((batch_size, num_heads, feature_size, value_size), dtype),
        k=jnp.zeros((batch_size, num_heads, feature_size), dtype),
        stream=init_stream(batch_size),
    )


@stateful_op(
    "pallas",
    "xla",
    "reference",
    supports=supports_kernel,
    fastest=fastest_recurrence,
    tokens=("q", "k", "v", "log_decay", "segment_ids", "mask"),
)
def linear_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    *,
    feature_map: FeatureMap = IDENTITY,
    log_decay: Float[Array, "rows steps H"] | None = None,
    normalize: bool = True,
    eps: float = 1e-12,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LinearAttentionState]:
    """Attend causally from q to k, v, in time linear in the length; return y, (B, N, H, V).

    Shared arguments, results and errors: `help(based_jax.ops)`. Outputs at masked tokens are 0.

    Args:
        q, k: queries and keys before the feature map (after it, with the default `IDENTITY`).
        v: values.
        feature_map: phi and the matching similarity; see `feature_maps`.
        log_decay: logarithm of the decay that each token applies to the sums before it, <= 0; the first two
            axes may be 1, so (1, 1, H) is a fixed decay per head. Affects the numerator only.
        normalize: divide by the normaliser; False returns the numerator.
        eps: added to the normaliser (1e-12 in the authors' torch code, 1e-6 in fla's kernels).
        chunk_size: tokens per chunk of "xla"; default 128. "reference" is quadratic in N.
        implementation: "pallas", the fused GPU kernel of `linear_recurrence` (up to 256 features); "xla";
            "reference"; or None for the best: from 16 tokens on the kernel where it can, else "xla".
    """
    batch, length, heads, width, value_size = expect_qkv(q, k, v)
    expect_feature_map(feature_map)
    expect_number("eps", eps)
    size = feature_map.size(width)
    shape = (batch, heads, size, value_size)
    expect_state(initial_state, kv=shape, k=shape[:3])
    if log_decay is not None:
        expect_log_decay(log_decay, batch, length, (heads,))
    chunk_size = expect_chunk_size(chunk_size, CHUNK)
    unsupported = refused(initial_state)
    if size > pallas_kernels.MAX_RECURRENCE_KEYS:
        unsupported = f"the kernel takes up to {pallas_kernels.MAX_RECURRENCE_KEYS} features, not {size}"
    chosen = choose("linear_attention", q, k, v, implementation=implementation, unsupported=unsupported)
    if chosen == "pallas":
        given = (q, k, v, log_decay), initial_state, return_state, segment_ids, mask
        return _fused(feature_map, eps if normalize else None, *given)
    if chosen == "reference":  # one chunk, similarities as products of features
        feature_map, chunk_size = feature_map._replace(similarity=None), length

    dtype = accumulation_dtype(v)
    state = initial_state or init_linear_attention_state(*shape, dtype)
    call = continue_from(initial_state, batch, length, segment_ids, mask)
    gates = None if log_decay is None else jnp.broadcast_to(log_decay.astype(dtype), (batch, length, heads))
    tokens = cast(call.unpadded((q, k, v, gates)), dtype)

    def step(sums: Sums, chunk: Any, start: Array | None, mask: Array | None) -> tuple[Array, Sums]:
        # Move heads to the front per chunk, which is in cache: moving them in whole arrays costs memory
        # traffic for long sequences (forward + backward ~ N^1.07 instead of N^0.95 on a CPU).
        chunk = jax.tree.map(heads_first, chunk)
        y, sums = _attend(chunk, start, mask, sums, feature_map, eps if normalize else None)
        return heads_first(y), sums

    chunks: dict[str, Any] = {"chunk_size": chunk_size, "start": call.start, "mask": mask}
    run = functools.partial(scan_chunks, step, inputs=tokens, **chunks)
    sums = (state.kv.astype(dtype), state.k.astype(dtype))
    y, (kv, k_sum) = run(sums_before(call, run, sums, tokens[3]))
    y = y.astype(v.dtype)
    return (y, LinearAttentionState(kv, k_sum, call.after)) if return_state else y


def _fused(
    phi: FeatureMap,
    eps: float | None,
    tokens: Any,
    state: LinearAttentionState | None,
    return_state: bool,
    segment_ids: Array | None,
    mask: Array | None,
) -> Any:
    """Run the kernel of `linear_recurrence` on features, and for the normaliser on values of 1.

    tokens: q, k, v and log_decay, as in `linear_attention`.
    """
    q, k, v, log_decay = tokens
    call = continue_from(state, q.shape[0], q.shape[1], segment_ids, mask)
    # Features of padding that is NaN would have gradients of NaN.
    q, k = (phi.features(x.astype(jnp.float32)) for x in call.unpadded((q, k)))

    def read(values: Array, log_decay: Array | None, sums: Any) -> tuple[Array, Any]:
        before = None if state is None else LinearRecurrenceState(sums, state.stream)
        how = 1.0, before, return_state, segment_ids, mask
        return outputs_and_state(fused_recurrence((q, k, values, log_decay), *how), return_state)

    y, new = read(v if eps is None else v.astype(jnp.float32), log_decay, state and state.kv)
    if eps is None and not return_state:
        return y
    ones = jnp.ones((*v.shape[:-1], 1), jnp.float32)
    normaliser, new_k = read(ones, None, state and state.k[..., None])
    if eps is not None:
        normaliser = normaliser + eps
        if mask is not None:  # masked tokens read zeros
            normaliser = jnp.where(mask[..., None, None], normaliser, 1)
        y = (y / normaliser).astype(v.dtype)
    return (y, LinearAttentionState(new.kv, new_k.kv[..., 0], new.stream)) if return_state else y


def sums_before(
    call: Continuation,
    run: Callable[[Sums], tuple[Array, Sums]],
    sums: Sums,
    log_decay: Float[Array, "B N H"] | None = None,
) -> Sums:
    """Return the sums before a call; see `Continuation.prefix`."""

    def operator() -> Sums:
        keys = call.kept(jnp.ones((*sums[1].shape[:2], 1), sums[0].dtype))
        values = keys[..., None]
        if log_decay is not None:
            values = values * jnp.exp(log_decay.sum(axis=1))[..., None, None]
        return values, keys

    return call.prefix(run, sums, operator, functools.partial(jax.tree.map, jnp.multiply))


def _attend(
    chunk: Any, start: Array | None, mask: Array | None, sums: Sums, phi: FeatureMap, eps: float | None
) -> tuple[Float[Array, "B H C V"], Sums]:
    """Process one chunk, starting from `sums`.

    chunk: q, k (B, H, C, K), v (B, H, C, V), log_decay (B, H, C); start, relative to it, and mask: (B, C).
    """
    q, k, v, log_decay = chunk
    kv, k_sum = sums
    width, size = q.shape[-1], q.shape[-2]
    visibility = chunk_mask(size, start, mask)
    phi_q, phi_k = phi.features(q), phi.features(k)
    if phi.similarity is None:
        scores = jnp.einsum("bhif,bhjf->bhij", phi_q, phi_k)
    else:
        scores = phi.similarity(_products(q, k), width)
    # Set masked similarities to zero: phi(q).phi(k) of an unrelated pair is not small.
    scores = jnp.where(visibility.visible, scores, 0)

    phi_k = visibility.entering(phi_k)
    normaliser = scores.sum(-1) + visibility.reading(phi_q @ k_sum[..., None])[..., 0]
    new_k_sum = visibility.kept(k_sum[..., None])[..., 0] + phi_k.sum(-2)
    if log_decay is None:
        numerator = scores @ v + visibility.reading(phi_q @ kv)
        new_kv = visibility.kept(kv) + jnp.einsum("bhjf,bhjv->bhfv", phi_k, v)
    else:
        numerator, new_kv = decayed_chunk(phi_q, phi_k, v, log_decay[..., None], kv, visibility, scores)

    y = numerator if eps is None else numerator / (normaliser + eps)[..., None]
    if mask is not None:  # also keeps 0 / eps of rows without tokens out of the gradients
        y = jnp.where(mask[:, None, :, None], y, 0)
    return y, (new_kv, new_k_sum)


def _products(q: Float[Array, "B H C K"], k: Float[Array, "B H C K"]) -> Float[Array, "B H C C"]:
    """Return q.k of all pairs of tokens of a chunk."""
    size, width = q.shape[-2:]
    if size > 1 or width > 32:
        return jnp.einsum("bhik,bhjk->bhij", q, k)
    # A GPU computes a sum of slices in the kernel that reads it; a reduction would be a launch of its own.
    return functools.reduce(jnp.add, (q[..., c : c + 1] * k[..., c : c + 1] for c in range(width)))
