"""Softmax attention, full or in a sliding window, with grouped heads, segments, padding and a cache.

    y_i = sum_j softmax_j(scale q_i . k_j) v_j   over the keys j that i may see

The window's primitive is `left`: query i sees keys i - left ... i, so left + 1 keys. The paper's width w
(w keys) is left = w - 1; the authors' torch `window_size` W is left = W // 2.
"""

import functools
from typing import Any

import jax.numpy as jnp

import pallas_kernels
from based_jax.ops import cudnn_attention
from based_jax.ops.attention_to_keys import (
    MIN_TILED_LENGTH,
    AttentionOptions,
    Pattern,
    attend,
    attend_in_blocks,
    merge,
    visible_keys,
    way_of,
)
from based_jax.ops.core import platforms, sharding
from based_jax.ops.core.arrays import append, cond
from based_jax.ops.core.implementations import KERNELS, choose
from based_jax.ops.core.kv_cache import (
    KVCache,
    expect_cache,
    keys_after,
    nan_where_outgrown,
    slot_index,
    write,
)
from based_jax.ops.core.op import body, expect_scale, expect_state, op, stateful_op, with_number
from based_jax.ops.core.stream import Continuation, advance, continue_from, outputs_and_state
from based_jax.ops.rotary import rotary
from based_jax.ops.tiled_attention import attend_in_tiles
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import expect, expect_array, expect_divisible, expect_integer

MIN_ALIGNED_LENGTH = 1024
"""Tokens of the shortest call with a cache that gets a second program, by tiles, for an empty cache. Shorter
calls, such as those for a prompt's chunks, would gain less than its compilation costs."""

ALONE = (*KERNELS, "tiled")
"""Implementations that attend to a call's own keys only"""

Attended = Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], Float[Array, "B N H"]]
"""outputs, or with `return_log_sum` the logarithms of their sums too"""


def left_from_paper_window(width: int) -> int:
    """Return `left` of the paper's window of `width` keys, the query's own included."""
    expect_integer("width", width, 1)
    return width - 1


def left_from_torch_window(window_size: int) -> int:
    """Return `left` of the authors' `window_size`, which their code halves."""
    expect_integer("window_size", window_size, 0)
    return window_size // 2


def _supports(kernel: str, q: Array, k: Array, v: Array) -> str | None:
    if kernel == "pallas":
        return pallas_kernels.supports_window_attention(q, k, v)
    return cudnn_attention.supports(q, k, v)


def _fastest(found: str, q: Any, k: Any, v: Any) -> str:
    """Return "xla" for short calls, and "tiled" for others on a CPU; short scores fit its caches.

    With tiles a training step of attn-tiny (8 x 256 bytes, float32, 2 cores) takes 17 % less time.
    """
    if found in KERNELS:
        return found if q.shape[1] >= cudnn_attention.MIN_LENGTH else "xla"
    is_tiled = q.shape[1] >= MIN_TILED_LENGTH and platforms.platform_of((q, k, v)) == "cpu"
    return "tiled" if is_tiled else "xla"


@stateful_op(
    *("cudnn", "pallas", "tiled", "xla", "reference"),
    supports=_supports,
    fastest=_fastest,
    tokens=("q", "k", "v", "segment_ids", "mask"),
)
def softmax_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    *,
    causal: bool = True,
    left: int | None = None,
    scale: Scale | None = None,
    initial_state: KVCache | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    allowed: Pattern | None = None,
    return_log_sum: bool = False,
    implementation: str | None = None,
) -> Attended | tuple[Attended, KVCache]:
    """Attend with a softmax from q to k, v and, if given, to the cache before them; return y, (B, N, H, V).

    Without a window, all outputs of a row that has outgrown its cache are NaN: under `jit` no error can be
    raised. Outputs at masked tokens are finite but meaningless. Shared arguments, results and errors:
    `help(based_jax.ops)`.

    Args:
        q, k, v: queries, keys, values; H a multiple of G (grouped-query attention).
        causal: key j is visible to query i only if j <= i.
        left: number of past keys that a query sees besides its own; None for all. Needs `causal`.
        scale: factor of the scores; None is K^(-1/2).
        initial_state: cache to continue from (`init_kv_cache`): `left` + 1 slots for a window, otherwise as
            many as the whole text may have tokens. Needs `causal`. Its heads may have more channels, the next
            multiple of 8: "cudnn" would otherwise pad all keys for every token.
        return_state: also return the cache with k, v written into it; needs `initial_state`.
        allowed: a sparser pattern: positions of queries and of keys within their segment (integers that
            broadcast) to booleans; a key must be allowed too. Needs `causal`.
        return_log_sum: return (y, the logarithm of each query's sum of exponentials, (B, N, H) in float32)
            instead of y, so that attention to several sets of keys can be merged.
        implementation: "reference" (dense), "xla" (windows block by block, full attention by blocks of
            queries), "tiled" (full causal attention by tiles of queries and keys, without `allowed`; no
            `jax.jvp`), "pallas" (fused, windows of up to 127 past keys on NVIDIA GPUs), "cudnn" (float16 and
            bfloat16 on NVIDIA GPUs, without `segment_ids`), both without `allowed` and `return_log_sum`, or
            None for the best: from 128 tokens up "pallas" where it can, then "cudnn"; on a CPU "tiled" from
            256 tokens up. After a state that is not empty "xla" computes the calls of the kernels and of the
            tiles, but for single tokens with "cudnn".

    Raises:
        ValueError: a text longer than the cache, where lengths are known.
    """
    cache, (*_, width) = initial_state, checked_sizes(q, k, v)
    expect_state(cache, k=("B", "W", "G", "K"), v=("B", "W", "G", "V"))
    q, factor = with_number(q, expect_scale(scale, q.shape[-1]))
    padded = cudnn_attention.padded_width(width)
    if cache is not None and k.shape == v.shape and cache.k.shape[-1] == cache.v.shape[-1] == padded:
        q, k, v = (cudnn_attention.pad_channels(x, padded) for x in (q, k, v))
    sizes = (*k.shape, v.shape[-1])
    expect_cache(cache, sizes, causal=causal, left=left, return_state=return_state, mask=mask)
    expect(allowed is None or callable(allowed), "allowed", allowed, "None or a function")
    expect(causal or allowed is None, "allowed", allowed, "None when causal is False")
    unsupported = _refusals(k, left, cache, segment_ids, allowed, return_log_sum)
    chosen = choose("softmax_attention", q, k, v, implementation=implementation, unsupported=unsupported)
    not_in_tiles = {
        "is causal": not causal,
        "has no windows (left)": left is not None,
        "has no pattern (allowed)": allowed is not None,
        "needs whole sequences and heads, and these are sharded over devices": sharding.is_active(),
    }
    if chosen == "tiled" and (reason := _first(not_in_tiles)):
        expect(implementation is None, "implementation", implementation, f"another one: it {reason}")
        chosen = "xla"
    how = AttentionOptions(causal, left, factor, allowed, return_log_sum, chosen)
    results = _softmax_attention(q, k, v, how, cache, return_state, segment_ids, mask)
    if width == v.shape[-1]:
        return results
    y, state = outputs_and_state(results, return_state)
    y = (y[0][..., :width], y[1]) if return_log_sum else y[..., :width]
    return (y, state) if return_state else y


def _softmax_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    how: AttentionOptions,
    cache: KVCache | None,
    return_state: bool,
    segment_ids: Int[Array, "B N"] | None,
    mask: Bool[Array, "B N"] | None,
) -> Any:
    batch, length = q.shape[:2]
    left, chosen = how.left, how.chosen
    call = continue_from(cache, batch, length, segment_ids, mask)
    tokens, stream = call.tokens, call.after
    q, k, v = call.unpadded((q, k, v))

    if cache is None:
        if chosen in ALONE:
            return _attend_alone(q, k, v, call, mask, how)
        if not how.causal:
            keys = (k, v, jnp.broadcast_to(tokens.start, (tokens.start.shape[0], length)), mask)
            whole: Any = sharding.whole(keys)
            k, v, key_start, mask = whole
            visible = tokens.start[:, :, None] == key_start[:, None, :]
            visible = visible if mask is None else visible & mask[:, None, :]
            y, log_sum = attend(q, k, v, visible, how.scale)
            return (y, log_sum) if how.return_log_sum else y
        if left is not None and left >= length * sharding.shards() - 1:
            left, how = None, how._replace(left=None)
        key_index = call.key_index
        if sharding.is_sharded():
            k, v, key_index = keys_of_devices(k, v, key_index, left)
        return way_of(how)(q, k, v, tokens, key_index, how)

    written = write(cache, k, v, tokens, stream)

    after_cache = functools.partial(
        _with_cache, *(q, k, v, cache, written, call), how._replace(chosen="xla") if chosen in ALONE else how
    )
    if chosen in ALONE and length >= (MIN_ALIGNED_LENGTH if chosen == "tiled" else 2):
        is_empty = jnp.all(cache.stream.length == 0)  # known on the device only
        y = cond(is_empty, lambda: _attend_alone(q, k, v, call, None, how), after_cache)
    elif chosen == "cudnn":
        key_index = slot_index(stream.length, cache.slots)
        visible = visible_keys(tokens.index, tokens.start, key_index, left)
        y = cudnn_attention.attend(q, written.k, written.v, visible=visible, scale=how.scale)
    else:
        y = after_cache()
    if left is None:
        y = nan_where_outgrown(written, y)
    return (y, written) if return_state else y


def _attend_alone(
    q: Array, k: Array, v: Array, call: Continuation, mask: Array | None, how: AttentionOptions
) -> Any:
    """Attend by a kernel or by tiles to the call's own keys; nothing is before them."""
    if how.chosen == "cudnn":
        options: dict[str, Any] = {"causal": how.causal, "left": how.left, "scale": how.scale}
        return cudnn_attention.attend(q, k, v, mask=mask, **options)
    # No real query sees padding, which is on the right.
    start = None if call.start is None else jnp.broadcast_to(call.start, q.shape[:2])
    if how.chosen == "tiled":
        y, log_sum = attend_in_tiles(q, k, v, start, how.scale)
        y = y.astype(v.dtype)
        return (y, log_sum) if how.return_log_sum else y
    assert how.left is not None
    return pallas_kernels.window_attention(q, k, v, left=how.left, scale=how.scale, starts=start)


def _with_cache(
    q: Array, k: Array, v: Array, cache: KVCache, written: KVCache, call: Continuation, how: AttentionOptions
) -> Any:
    """Attend to the keys before a call and to its own, which `written`, the new cache, contains."""
    keys, values, key_index = keys_after(cache, written, k, v, call, how.left)
    attend_to = attend_in_blocks if q.shape[1] == 1 else way_of(how)
    y = attend_to(q, keys, values, call.tokens, key_index, how)
    # The values came from the cache, whose dtype may be another.
    return (y[0].astype(v.dtype), y[1]) if how.return_log_sum else y.astype(v.dtype)


def _supports_step(kernel: str, q: Array, k: Array, v: Array, *cache_and_rotary: Any) -> str | None:
    return pallas_kernels.supports_window_step(q, k, v)


def _fastest_step(
    found: str, q: Array, k: Array, v: Array, cache: KVCache | None = None, rotary_dim: int | None = None
) -> str:
    if cache is None or found != "pallas":
        return found
    return pallas_kernels.fastest_window_step(q, k, v, cache.k, rotary_dim is not None)


@op("pallas", "triton", "xla", "reference", supports=_supports_step, fastest=_fastest_step)
def window_step(
    q: Float[Array, "B H K"],
    k: Float[Array, "B G K"],
    v: Float[Array, "B G V"],
    cache: KVCache,
    *,
    scale: Scale | None = None,
    positions: Int[Array, " B"] | None = None,
    rotary_dim: int | None = None,
    rotary_base: float = 10000.0,
    rotary_interleaved: bool = False,
    implementation: str | None = None,
) -> tuple[Float[Array, "B H V"], KVCache]:
    """Take one step in a window of `cache.slots` keys: write key and value into the ring, then attend.

    Rows may have different lengths. The fused kernels ("pallas", or "triton" through jax-triton) update the
    ring buffer in place if it is donated to `jit`.

    Args:
        q, k, v: queries, keys and values of one token per row; already rotated unless `rotary_dim` is given.
        cache: the last keys, rotated, and values.
        scale: factor of the scores; None is K^(-1/2).
        positions: (B,) of the rotary embedding; None counts from the start of each row's segment.
        rotary_dim, rotary_base, rotary_interleaved: rotate q and k first, with `ops.rotary`'s arguments
            dim, base and interleaved; None does not rotate.

    Returns:
        y: (B, H, V) in the dtype of v, and the new cache.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        expect_array(name, array, ("B", "heads", "dim"), "floating")
    if positions is not None:
        expect_array("positions", positions, (q.shape[0],), "integer")
        positions = positions.astype(jnp.int32)
    q, scale = with_number(q, expect_scale(scale, q.shape[-1]))
    expect_state(cache, k=(q.shape[0], "W", k.shape[1], "K"))
    reasons = {
        "the kernel takes no float64 cache": cache.k.dtype == jnp.float64,
        "the kernel takes no cache of wider heads": cache.k.shape[-1] != k.shape[-1],
    }
    chosen = choose(
        *("window_step", q, k, v, cache, rotary_dim),
        implementation=implementation,
        unsupported=_first(reasons),
    )
    if chosen in KERNELS:
        sizes = checked_sizes(q[:, None], k[:, None], v[:, None])
        expect_cache(cache, sizes, causal=True, left=cache.slots - 1, return_state=True, mask=None)
        turn = None
        if rotary_dim is not None:
            turn = pallas_kernels.Rotary(rotary_dim, rotary_base, rotary_interleaved)
        options: dict[str, Any] = {"start": cache.stream.start, "position": positions, "scale": scale}
        rings = (cache.k, cache.v, cache.stream.length)
        y, keys, values = pallas_kernels.window_step(q, k, v, *rings, rotary=turn, backend=chosen, **options)
        return y, KVCache(keys, values, body(advance)(cache.stream, q.shape[0], 1)[1])
    if rotary_dim is not None:
        positions = cache.stream.length - cache.stream.start if positions is None else positions
        angles: dict[str, Any] = {"dim": rotary_dim, "base": rotary_base, "interleaved": rotary_interleaved}
        q, k = (body(rotary)(x[:, None], positions[:, None], **angles)[:, 0] for x in (q, k))
    how: dict[str, Any] = {"left": cache.slots - 1, "scale": scale, "implementation": chosen}
    tokens = (x[:, None] for x in (q, k, v))
    y, cache = body(softmax_attention)(*tokens, initial_state=cache, return_state=True, **how)
    return y[:, 0], cache


def checked_sizes(q: Array, k: Array, v: Array) -> tuple[int, ...]:
    """Check queries, keys and values; return B, N, G, K, V."""
    expect_array("q", q, ("B", "N", "H", "K"), "floating")
    batch, length, heads, width = q.shape
    expect_array("k", k, (batch, length, "G", width), "floating")
    expect_array("v", v, (*k.shape[:3], "V"), "floating")
    expect_divisible("number of query heads", heads, "number of key heads", k.shape[2])
    return (*k.shape, v.shape[-1])


def _first(reasons: dict[str, bool]) -> str | None:
    """Return the first reason that holds, or None."""
    return next((reason for reason, holds in reasons.items() if holds), None)


def _refusals(
    k: Array,
    left: int | None,
    cache: KVCache | None,
    segment_ids: Any,
    allowed: Any,
    log_sum: bool,
) -> dict[str, str | None]:
    """Return the reasons why arguments other than q, k, v exclude each kernel; the preferred kernel first."""
    both = {
        "has no pattern but windows (allowed)": allowed is not None,
        "returns no log-sums (return_log_sum)": log_sum,
        "needs whole sequences, and these are sharded over devices": sharding.is_sharded(),
    }
    cudnn = both | {
        "has no segments (segment_ids)": segment_ids is not None,
        "needs a cache of the keys' dtype": cache is not None and cache.k.dtype != k.dtype,
    }
    most = pallas_kernels.MAX_WINDOW_LEFT
    pallas = both | {f"takes windows of at most {most} past keys (left)": left is None or left > most}
    # In a window "pallas" comes first for its bytes. Forward both read q, k, v and write y. Backward our
    # kernels move 12 arrays of that size; the algorithm of FlashAttention-2, which cuDNN is believed to
    # follow, 9, and dq's float32 sums, cleared, added to and read again: as 8 more in bfloat16. Neither was
    # measured.
    return {"pallas": _first(pallas), "cudnn": _first(cudnn)}


def keys_of_devices(k: Array, v: Array, key_index: Array, left: int | None) -> tuple[Array, Array, Array]:
    """Return keys, values and indices visible to a shard of the sequences: all, or its window and its own."""
    if left is None:
        return sharding.whole((k, v, key_index))
    before = (*(sharding.halo(x, left) for x in (k, v)), key_index[:, :1] + jnp.arange(-left, 0))
    return append(before, (k, v, key_index))


@op()
def merge_attention(*parts: tuple[Array, Array]) -> Array:
    """Merge attention to several disjoint sets of keys.

    Args:
        parts: the outputs y, (..., H, V), and log_sum, (..., H), of `softmax_attention` to each set, with
            `return_log_sum`.

    Returns:
        The outputs of attention to all keys, (..., H, V) in the dtype of y.
    """
    return merge(jnp.stack([y for y, _ in parts]), jnp.stack([log_sum for _, log_sum in parts]))
