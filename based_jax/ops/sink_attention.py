"""Attention in a sliding window that never loses the first tokens of a document (StreamingLLM, 2309.17453).

    y_i = sum_j softmax_j(scale q_i . k_j) v_j   over j with i - left <= j <= i or j < sinks

Positions i and j count within a document. The state is constant: the window's ring of left + 1 keys, and the
first `sinks` keys of the current document. Unlike in the paper, positions of keys are those in the text.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops.attention_to_keys import (
    QUERY_BLOCK,
    AttentionOptions,
    attend,
    attend_in_blocks,
    attend_in_windows,
    merge,
)
from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import accumulation_dtype, append, set_rows
from based_jax.ops.core.chunks import map_chunks
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.kv_cache import KVCache, init_kv_cache, recent, write
from based_jax.ops.core.op import (
    body,
    expect_scale,
    expect_state,
    expect_state_to_return,
    stateful_op,
    with_number,
)
from based_jax.ops.core.stream import Continuation, Stream, continue_from
from based_jax.ops.softmax_attention import checked_sizes, softmax_attention
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import expect, expect_integer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SinkCache:
    """The last keys and values of each row, and the first of its current document."""

    window: KVCache
    k: Float[Array, "B S G K"]
    v: Float[Array, "B S G V"]

    @property
    def stream(self) -> Stream:
        """Current position of each row."""
        return self.window.stream


def init_sink_cache(
    batch_size: int,
    left: int,
    sinks: int,
    kv_heads: int,
    key_size: int,
    value_size: int,
    dtype: Any = jnp.float32,
) -> SinkCache:
    """Return an empty cache."""
    firsts = (jnp.zeros((batch_size, sinks, kv_heads, size), dtype) for size in (key_size, value_size))
    return SinkCache(init_kv_cache(batch_size, left + 1, kv_heads, key_size, value_size, dtype), *firsts)


@stateful_op("xla", "reference", tokens=("q", "k", "v", "segment_ids", "mask"))
def sink_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    *,
    left: int,
    sinks: int,
    scale: Scale | None = None,
    initial_state: SinkCache | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], SinkCache]:
    """Attend to the last `left` + 1 keys and to the first `sinks` of each document; return y, (B, N, H, V).

    Shared arguments, results and errors: `help(based_jax.ops)`. A call without a state takes time linear in
    N, unless its tokens are sharded over devices; one with a state compares all its queries with all its
    keys, the window's and the sinks.

    Args:
        q, k, v: queries, keys, values; H a multiple of G (grouped-query attention).
        left: number of past keys of the window.
        sinks: number of first keys, at least 1.
        scale: factor of the scores; None is K^(-1/2).
        initial_state: of `init_sink_cache`.
        return_state: needs `initial_state`.
    """
    expect_integer("left", left, 0)
    expect_integer("sinks", sinks, 1)
    checked_sizes(q, k, v)
    expect_state_to_return(initial_state, return_state)

    def allowed(query: Array, key: Array) -> Array:
        return (query - key <= left) | (key < sinks)

    chosen = choose("sink_attention", q, k, v, implementation=implementation)
    batch, length = q.shape[:2]
    q, factor = with_number(q, expect_scale(scale, q.shape[-1]))
    if initial_state is None:
        if chosen == "xla" and length > left + 1 and not sharding.is_sharded():
            call = continue_from(None, batch, length, segment_ids, mask)
            return _in_windows(*call.unpadded((q, k, v)), call, left, min(sinks, length), factor)
        options: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "scale": factor}
        return body(softmax_attention)(q, k, v, allowed=allowed, implementation=chosen, **options)
    expect_state(initial_state, k=(batch, sinks, *k.shape[2:]), v=(batch, sinks, *v.shape[2:]))
    expect_state(initial_state, **{"window.k": (batch, "W", *k.shape[2:])})
    window = initial_state.window
    expect_state(initial_state, **{"window.v": (batch, window.slots, *v.shape[2:])})
    expect(window.slots == left + 1, "slots of initial_state", window.slots, f"left + 1 = {left + 1}")
    call = continue_from(window, batch, length, segment_ids, mask)
    q, k, v = call.unpadded((q, k, v))
    tokens, before, after = call.tokens, window.stream, call.after

    first = before.start[:, None] + jnp.arange(sinks)
    first = jnp.where(first < before.length[:, None], first, -1)
    ring_k, ring_v, last = recent(window, left)
    last = jnp.where(last >= before.start[:, None] + sinks, last, -1)  # the others are the sinks
    own = jnp.broadcast_to(call.key_index, (batch, length))
    near = append((ring_k, ring_v, last), (k.astype(ring_k.dtype), v.astype(ring_v.dtype), own))
    keys, values, index = append((initial_state.k, initial_state.v, first), near)
    how = AttentionOptions(True, None, factor, allowed, False, chosen)
    y = attend_in_blocks(q, keys, values, tokens, index, how).astype(v.dtype)
    if not return_state:
        return y

    position = jnp.broadcast_to(tokens.positions, (batch, length))
    is_first = (own >= after.start[:, None]) & (position < sinks)  # of the last document of the call
    slot = jnp.where(is_first, position, sinks)  # out of range: dropped
    pairs = (initial_state.k, k), (initial_state.v, v)
    firsts = (set_rows(old, slot, new.astype(old.dtype)) for old, new in pairs)
    return y, SinkCache(write(window, k, v, tokens, after), *firsts)


def _in_windows(
    q: Array, k: Array, v: Array, call: Continuation, left: int, sinks: int, scale: Any
) -> Float[Array, "B N H V"]:
    """Merge attention to the window with attention to the sinks that are no longer in it."""
    how = AttentionOptions(True, left, scale, None, True, "xla")
    near, near_sum = attend_in_windows(q, k, v, call.tokens, call.key_index, how)
    index, start = (jnp.broadcast_to(x, q.shape[:2]) for x in (call.tokens.index, call.tokens.start))
    # Many queries add to the gradient of a sink.
    wide_k, wide_v = (x.astype(accumulation_dtype(x)) for x in (k, v))

    def attend_far(tokens: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        q, index, start = tokens
        first = start[..., None] + jnp.arange(sinks)
        visible = (first < index[..., None] - left)[:, :, None]
        if call.start is None:
            some_k, some_v = (x[:, None, :sinks] for x in (wide_k, wide_v))
        else:
            some_k, some_v = (_rows(x, first) for x in (wide_k, wide_v))
        return attend(q[:, :, None], some_k.astype(k.dtype), some_v.astype(v.dtype), visible, scale)

    far, far_sum = map_chunks(attend_far, (q, index, start), QUERY_BLOCK)
    return merge(jnp.stack([near, far[:, :, 0]]), jnp.stack([near_sum, far_sum[:, :, 0]]))


@jax.vmap
def _rows(x: Float[Array, "N G D"], index: Int[Array, "n S"]) -> Float[Array, "n S G D"]:
    """Return the tokens of each row at these indices, the last one beyond its end."""
    return x.at[index].get(mode="clip")
