"""Causal linear attention for any feature map: quadratic reference, chunked scan, and continuation.

    y_i = sum_{j <= i} d_ij phi(q_i).phi(k_j) v_j / (sum_{j <= i} phi(q_i).phi(k_j) + eps)

d_ij = exp(sum of log_decay over j < t <= i), 1 without decay; the normaliser is never decayed (Based v2,
Appendix C). Three equivalent views (Based, section 4.1): the quadratic one is the specification; the
chunked one keeps the sums S = sum phi(k) v^T and z = sum phi(k) between chunks, so time and memory are
linear in the length; with one token per call it is the recurrence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops import context_parallel
from based_jax.ops.chunks import heads_first, relative_start, scan_chunks, sight
from based_jax.ops.decay import expect_log_decay
from based_jax.ops.dispatch import implementation_for
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.eager import compiled
from based_jax.ops.feature_maps import IDENTITY, FeatureMap
from based_jax.ops.linear_recurrence import decayed_chunk
from based_jax.ops.registration import open_to_others
from based_jax.ops.stream import Stream, advance, init_stream, stays, stream_of, unpadded
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array

CHUNK = 128
"""Tokens per chunk of the scan. On a CPU (B 2, N 8192, H 4) forward and backward together took 238 ms with
128 and 261 with 64; forward alone 93 and 79."""


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
    """The state before the first token; `dtype` is float32, or float64 for a float64 computation."""
    return LinearAttentionState(
        kv=jnp.zeros((batch_size, num_heads, feature_size, value_size), dtype),
        k=jnp.zeros((batch_size, num_heads, feature_size), dtype),
        stream=init_stream(batch_size),
    )


@open_to_others
@context_parallel.splits("q", "k", "v", "log_decay", "segment_ids", "mask")
@compiled
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
) -> Any:
    """Causal linear attention of q over k, v.

    Args:
        q, k: queries and keys before the feature map (after it, with the default `IDENTITY`).
        v: values.
        feature_map: phi and the matching similarity; see `feature_maps`.
        log_decay: logarithm of the decay that each token applies to what came before it, <= 0;
            axes of size 1 broadcast, so (1, 1, H) is a fixed decay per head. Numerator only.
        normalize: divide by the normaliser; False returns the numerator.
        eps: added to the normaliser (1e-12 in the authors' torch code, 1e-6 in fla's kernels).
        initial_state: continue from here; None starts empty.
        return_state: also return the state behind the last real token.
        segment_ids: (B, N) integers; a token attends within its own segment only.
        mask: (B, N) booleans, right padding: masked tokens leave outputs of others and the state alone;
            their own outputs are 0.
        chunk_size: tokens per chunk of "xla"; default 128.
        implementation: "reference" (quadratic in N), "xla" (chunked scan) or None for the best.

    Returns:
        y: (B, N, H, V) in the dtype of v, or ``(y, state)`` with `return_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong shape, dtype or value, named in the message.
    """
    chosen = implementation_for("linear_attention", q, k, v, implementation=implementation)
    batch, length = check_linear_attention(q, k, v, feature_map.size, initial_state)
    heads, width, value_size = *q.shape[2:], v.shape[-1]
    if log_decay is not None:
        expect_log_decay(log_decay, batch, length, (heads,))
    expect(chunk_size is None or chunk_size >= 1, "chunk_size", chunk_size, "at least 1")

    dtype = accumulation_dtype(v)
    state = initial_state
    if state is None:
        state = init_linear_attention_state(batch, heads, feature_map.size(width), value_size, dtype)
    before = stream_of(initial_state, batch, length, segment_ids, mask)
    places, stream = advance(before, batch, length, segment_ids, mask)
    q, k, v = unpadded(mask, (q, k, v))
    if log_decay is not None:
        log_decay = unpadded(mask, jnp.broadcast_to(log_decay.astype(dtype), (batch, length, heads)))

    start = relative_start(places, before, segment_ids)
    compute = _reference if chosen == "reference" else _chunked

    def run(sums: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        return compute(
            q.astype(dtype), k.astype(dtype), v.astype(dtype), log_decay, start, mask,
            sums, feature_map, eps if normalize else None, chunk_size or CHUNK,
        )  # fmt: skip

    sums = (state.kv.astype(dtype), state.k.astype(dtype))
    if initial_state is None and before is not None:
        sums = sums_before(lambda sums: run(sums)[1], sums, stays(before, stream), log_decay)
    y, (kv, k_sum) = run(sums)
    y = y.astype(v.dtype)
    return (y, LinearAttentionState(kv, k_sum, stream)) if return_state else y


def sums_before(
    run: Callable[[tuple[Array, Array]], tuple[Array, Array]],
    empty: tuple[Array, Array],
    stays: Bool[Array, " B"],
    log_decay: Float[Array, "B N H"] | None,
) -> tuple[Array, Array]:
    """kv and k in front of this device's part of the sequences; see `context_parallel.sums_before`."""
    keys = stays[:, None, None].astype(empty[0].dtype)
    values = keys[..., None]
    if log_decay is not None:
        values = values * jnp.exp(log_decay.sum(axis=1))[..., None, None]
    values = jnp.broadcast_to(values, (*empty[1].shape[:2], 1, 1))
    return context_parallel.sums_before(run, empty, (values, keys), context_parallel.scale_all)


def check_linear_attention(
    q: Array, k: Array, v: Array, feature_size: Callable[[int], int], state: LinearAttentionState | None
) -> tuple[int, int]:
    """B and N, once the arrays and the state fit together.

    Raises:
        TypeError, ValueError: the one that does not, named in the message.
    """
    expect_array("q", q, ("B", "N", "H", "K"), "floating")
    batch, length, heads, width = q.shape
    expect_array("k", k, (batch, length, heads, width), "floating")
    expect_array("v", v, (batch, length, heads, "V"), "floating")
    if state is not None:
        features = feature_size(width)
        expect_array("initial_state.kv", state.kv, (batch, heads, features, v.shape[-1]), "floating")
        expect_array("initial_state.k", state.k, (batch, heads, features), "floating")
    return batch, length


def _chunk_outputs(q, k, v, log_decay, start, mask, state, feature_map, eps):
    """One chunk behind `state`: outputs and the state behind it.

    q, k: (B, H, C, K); v: (B, H, C, V); log_decay: (B, H, C); start, relative to the chunk, and mask: (B, C).
    """
    kv, k_sum = state
    width, size = q.shape[-1], q.shape[-2]
    seen = sight(size, start, mask)
    phi_q, phi_k = feature_map.features(q), feature_map.features(k)
    if feature_map.similarity is None:
        scores = jnp.einsum("bhif,bhjf->bhij", phi_q, phi_k)
    else:
        scores = feature_map.similarity(jnp.einsum("bhik,bhjk->bhij", q, k), width)
    # A masked similarity is zeroed, not sent to -inf: phi(q).phi(k) of an unrelated pair is not small.
    scores = jnp.where(seen.visible, scores, 0)

    phi_k = seen.entering(phi_k)
    normaliser = scores.sum(-1) + seen.reading(phi_q @ k_sum[..., None])[..., 0]
    new_k_sum = seen.kept(k_sum[..., None])[..., 0] + phi_k.sum(-2)
    if log_decay is None:
        numerator = scores @ v + seen.reading(phi_q @ kv)
        new_kv = seen.kept(kv) + jnp.einsum("bhjf,bhjv->bhfv", phi_k, v)
    else:
        numerator, new_kv = decayed_chunk(phi_q, phi_k, v, log_decay[..., None], kv, seen, scores)

    y = numerator if eps is None else numerator / (normaliser + eps)[..., None]
    if mask is not None:  # also keeps 0 / eps of rows without any token out of the gradients
        y = jnp.where(mask[:, None, :, None], y, 0)
    return y, (new_kv, new_k_sum)


def _reference(q, k, v, log_decay, start, mask, state, feature_map, eps, chunk_size):
    """The whole call as one chunk: quadratic in the length, similarities as products of features."""
    phi = feature_map._replace(similarity=None)
    decay = None if log_decay is None else log_decay.transpose(0, 2, 1)
    y, sums = _chunk_outputs(
        heads_first(q), heads_first(k), heads_first(v), decay, start, mask, state, phi, eps
    )
    return heads_first(y), sums


def _chunked(q, k, v, log_decay, start, mask, state, feature_map, eps, chunk_size):
    """A scan over chunks; the backward pass recomputes a chunk's features instead of keeping them."""

    def step(state, chunk, start, mask):
        # Heads move to the front here, where a chunk is in cache: moved in the whole arrays beforehand, long
        # sequences paid for the memory traffic (forward + backward ~ N^1.07 instead of N^0.95 on a CPU).
        q, k, v = map(heads_first, chunk[:3])
        log_decay = None if chunk[3] is None else chunk[3].swapaxes(1, 2)
        y, state = _chunk_outputs(q, k, v, log_decay, start, mask, state, feature_map, eps)
        return heads_first(y), state

    return scan_chunks(
        step, state, (q, k, v, log_decay), length=q.shape[1], chunk_size=chunk_size, start=start, mask=mask
    )
