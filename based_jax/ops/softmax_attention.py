"""Softmax attention, full or in a sliding window, with grouped heads, segments, padding and a cache.

    y_i = sum_j softmax_j(scale q_i . k_j) v_j   over the keys j that i may see

The window's primitive is `left`: query i sees keys i - left ... i, so left + 1 keys. The paper's width w
(w keys) is left = w - 1; the authors' torch `window_size` W is left = W // 2 (spec of Based, 4.1 and code).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import pallas_kernels
from based_jax.ops import context_parallel, cudnn_attention
from based_jax.ops.dispatch import KERNELS, implementation_for
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.eager import compiled
from based_jax.ops.kv_cache import KVCache, recent, slot_index, write
from based_jax.ops.registration import open_to_others
from based_jax.ops.ring import expect_room
from based_jax.ops.rotary import rotary
from based_jax.ops.stream import advance, unpadded
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array, expect_divisible

QUERY_BLOCK = 512
"""Queries per block of the full attention's "xla" form: memory O(block * M) instead of O(N * M)."""

MIN_WINDOW_BLOCK = 16


def left_from_paper_window(width: int) -> int:
    """`left` of the paper's window of `width` keys, the query's own included."""
    expect(width >= 1, "width", width, "at least 1 key")
    return width - 1


def left_from_torch_window(window_size: int) -> int:
    """`left` of the authors' `window_size`, which their code halves."""
    expect(window_size >= 0, "window_size", window_size, "at least 0")
    return window_size // 2


@open_to_others
@context_parallel.splits("q", "k", "v", "segment_ids", "mask")
def softmax_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    *,
    causal: bool = True,
    left: int | None = None,
    scale: float | None = None,
    initial_state: KVCache | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    allowed: Callable[[Array, Array], Array] | None = None,
    return_log_sum: bool = False,
    implementation: str | None = None,
) -> Any:
    """Softmax attention of q over k, v and, if given, over the cache before them.

    Args:
        q, k, v: queries, keys, values; H a multiple of G (grouped-query attention).
        causal: key j is visible to query i only if j <= i.
        left: number of past keys that a query sees beside its own; None is all of them. Needs `causal`.
        scale: factor of the scores; None is K^(-1/2).
        initial_state: cache to continue from (`kv_cache.init_kv_cache`): `left` + 1 slots for a window,
            otherwise as many as the whole text may have tokens. Needs `causal`.
        return_state: also return the cache with k, v written into it; needs `initial_state`.
        segment_ids: (B, N) integers; tokens see their own segment only.
        mask: (B, N) booleans, right padding; outputs at masked tokens are finite but meaningless.
        allowed: a sparser pattern: positions of queries and of keys within their segment (integers that
            broadcast) to booleans; a key must be allowed too. Needs `causal`.
        return_log_sum: return (y, the logarithm of each query's sum of exponentials, (B, N, H) in float32) in
            the place of y, so that attention to several sets of keys can be merged.
        implementation: "reference" (dense), "xla" (windows block by block, full attention by blocks of
            queries), "cudnn" (float16 and bfloat16 on NVIDIA GPUs, without `segment_ids`, `allowed` and
            `return_log_sum`; with a state that is not empty it computes single tokens, and "xla" longer
            calls) or None for the best: "cudnn" where it can, from 128 tokens up.

    Returns:
        y: (B, N, H, V) in the dtype of v, or ``(y, state)`` with `return_state`. Without a window, all
        outputs of a row that has outgrown its cache are NaN: under `jit` no error can be raised.

    Raises:
        TypeError, ValueError: an argument of the wrong shape, dtype or value, named in the message; a text
            longer than the cache, where lengths are known.
    """
    _check(q, k, v, causal, left, initial_state, return_state, mask)
    expect(causal or allowed is None, "allowed", allowed, "None when causal is False")
    chosen = implementation_for(
        "softmax_attention", q, k, v, implementation=implementation,
        unsupported=_not_for_cudnn(k, scale, initial_state, segment_ids, allowed, return_log_sum),
    )  # fmt: skip
    return _attention(
        q, k, v, causal, left, scale, initial_state, return_state, segment_ids, mask, allowed, return_log_sum,
        chosen,
    )  # fmt: skip


@compiled
def _attention(
    q, k, v, causal, left, scale, cache, return_state, segment_ids, mask, allowed, return_log_sum, chosen
) -> Any:
    """`softmax_attention` once its arguments are checked."""
    batch, length = q.shape[:2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    how: dict[str, Any] = {"scale": scale, "allowed": allowed, "return_log_sum": return_log_sum}
    places, stream = advance(None if cache is None else cache.stream, batch, length, segment_ids, mask)
    q, k, v = unpadded(mask, (q, k, v))

    if cache is None:
        if chosen == "cudnn":
            return cudnn_attention.attend(q, k, v, causal=causal, left=left, scale=scale, mask=mask)
        if not causal:
            keys = (k, v, jnp.broadcast_to(places.start, (places.start.shape[0], length)), mask)
            if context_parallel.is_split():
                keys = jax.tree.map(context_parallel.whole, keys)
            k, v, *where = keys
            return attend(q, k, v, _same_segment(places.start, *where), scale, return_log_sum)
        key_index = places.index if mask is None else jnp.where(mask, places.index, -1)
        if left is not None and left >= length * context_parallel.parts() - 1:
            left = None
        if context_parallel.is_split():
            k, v, key_index = _keys_of_devices(k, v, key_index, left)
        if chosen == "xla" and left is not None:
            return _windowed(q, k, v, places, key_index, left, **how)
        return attend_in_blocks(q, k, v, places, key_index, left, chosen, **how)

    written = write(cache, k, v, places, stream)

    def with_cache(chosen: str) -> Any:
        return _with_cache(q, k, v, cache, written, places, left, mask, chosen, **how)

    if chosen != "cudnn":
        y = with_cache(chosen)
    elif length == 1:
        key_index = slot_index(stream.length, cache.slots)
        visible = _visible(places.index, places.start, key_index, left, None)
        y = cudnn_attention.attend_one(q, written.k, written.v, visible, scale)
    else:
        # Which rows have been anywhere is known on the device only.
        y = lax.cond(
            jnp.all(cache.stream.length == 0),
            lambda: cudnn_attention.attend(q, k, v, causal=True, left=left, scale=scale),
            lambda: with_cache("xla"),
        )
    if left is None:
        fits = stream.length <= cache.slots
        # The newest tokens of a longer row have replaced its oldest: none of its outputs is right any more.
        y = jax.tree.map(lambda y: jnp.where(fits.reshape(-1, *[1] * (y.ndim - 1)), y, jnp.nan), y)
    # The values came from the cache, whose dtype may be another.
    y = (y[0].astype(v.dtype), y[1]) if return_log_sum else y.astype(v.dtype)
    return (y, written) if return_state else y


def _with_cache(q, k, v, cache, written, places, left, mask, chosen, **how) -> Any:
    """Attend to the keys before a call and to its own; `written` is the cache with those in it."""
    batch, length = q.shape[:2]
    if left is None or length == 1:
        key_index = slot_index(written.stream.length, cache.slots)
        return attend_in_blocks(q, written.k, written.v, places, key_index, left, chosen, **how)
    old_k, old_v, old_index = recent(cache, left)
    key_index = jnp.broadcast_to(places.index, (batch, length))
    key_index = key_index if mask is None else jnp.where(mask, key_index, -1)
    keys = jnp.concatenate([old_k.astype(k.dtype), k], axis=1)
    values = jnp.concatenate([old_v.astype(v.dtype), v], axis=1)
    key_index = jnp.concatenate([old_index, key_index], axis=1)
    if chosen == "xla":
        return _windowed(q, keys, values, places, key_index, left, **how)
    return attend_in_blocks(q, keys, values, places, key_index, left, chosen, **how)


@open_to_others
@compiled
def window_step(
    q: Float[Array, "B H K"],
    k: Float[Array, "B G K"],
    v: Float[Array, "B G V"],
    cache: KVCache,
    *,
    scale: float | None = None,
    positions: Int[Array, " B"] | None = None,
    rotary_dim: int | None = None,
    rotary_base: float = 10000.0,
    rotary_interleaved: bool = False,
    implementation: str | None = None,
) -> tuple[Float[Array, "B H V"], KVCache]:
    """One decoding step of a window of `cache.slots` keys: write key and value into the ring, then attend.

    Rows may be at different lengths. The fused kernels ("pallas", or "triton" through jax-triton) update the
    ring in place where `jit` was given it to donate.

    Args:
        q, k, v: of one token per row; already rotated unless `rotary_dim` is given.
        cache: the last keys, rotated, and values.
        scale: factor of the scores; None is K^(-1/2).
        positions: (B,) of the rotary embedding; None counts from the start of each row's segment.
        rotary_dim, rotary_base, rotary_interleaved: rotate q and k first, with `ops.rotary`'s arguments
            dim, base and interleaved; None does not rotate.

    Returns:
        y: (B, H, V) in the dtype of v, and the moved cache.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        expect_array(name, array, ("B", "heads", "dim"), "floating")
    if positions is not None:
        expect_array("positions", positions, (len(q),), "integer")
    wide = "the kernel takes no float64 cache" if cache.k.dtype == jnp.float64 else None
    chosen = implementation_for("window_step", q, k, v, implementation=implementation, unsupported=wide)
    if chosen in KERNELS:
        batch, _ = _check(q[:, None], k[:, None], v[:, None], True, cache.slots - 1, cache, True, None)
        turn = None
        if rotary_dim is not None:
            turn = pallas_kernels.Rotary(rotary_dim, rotary_base, rotary_interleaved)
        y, ring_k, ring_v = pallas_kernels.window_step(
            q, k, v, cache.k, cache.v, cache.stream.length,
            start=cache.stream.start, position=positions, scale=scale, rotary=turn, backend=chosen,
        )  # fmt: skip
        return y, KVCache(ring_k, ring_v, advance(cache.stream, batch, 1)[1])
    if rotary_dim is not None:
        positions = cache.stream.length - cache.stream.start if positions is None else positions
        q, k = (
            rotary(
                x[:, None],
                positions[:, None],
                dim=rotary_dim,
                base=rotary_base,
                interleaved=rotary_interleaved,
            )[:, 0]
            for x in (q, k)
        )
    y, cache = softmax_attention(
        q[:, None], k[:, None], v[:, None],
        left=cache.slots - 1, scale=scale, initial_state=cache, return_state=True,
        implementation=chosen,
    )  # fmt: skip
    return y[:, 0], cache


def _check(q, k, v, causal, left, cache, return_state, mask) -> tuple[int, int]:
    expect_array("q", q, ("B", "N", "H", "K"), "floating")
    batch, length, heads, width = q.shape
    expect_array("k", k, (batch, length, "G", width), "floating")
    kv_heads = k.shape[2]
    expect_array("v", v, (batch, length, kv_heads, "V"), "floating")
    expect_divisible("number of query heads", heads, "number of key heads", kv_heads)
    expect(left is None or left >= 0, "left", left, "None or at least 0")
    expect(causal or left is None, "left", left, "None when causal is False")
    if cache is None:
        expect(not return_state, "return_state", return_state, "False without an initial_state to write to")
        return batch, length
    expect(causal, "causal", causal, "True with an initial_state")
    expect_array("initial_state.k", cache.k, (batch, "W", kv_heads, width), "floating")
    expect_array("initial_state.v", cache.v, (batch, cache.slots, kv_heads, v.shape[-1]), "floating")
    if left is not None:
        expect(cache.slots == left + 1, "slots of initial_state", cache.slots, f"left + 1 = {left + 1}")
    else:
        # What is not known under `jit` gives NaN later.
        what = f"max_length = {cache.slots} tokens, the size of the state"
        expect_room(cache.stream, length, mask, cache.slots, what)
    return batch, length


def _not_for_cudnn(k, scale, cache, segment_ids, allowed, return_log_sum) -> str | None:
    """Why the arguments beside q, k, v keep cuDNN from running the call, or None."""
    reasons = {
        "has no segments (segment_ids)": segment_ids is not None,
        "has no pattern but windows (allowed)": allowed is not None,
        "returns no log-sums (return_log_sum)": return_log_sum,
        "needs a number as scale, known when the call is traced": not isinstance(scale, float | int | None),
        "needs whole sequences, and these are split over devices": context_parallel.is_split(),
        "needs a cache of the keys' dtype": cache is not None and cache.k.dtype != k.dtype,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _keys_of_devices(k, v, key_index, left) -> tuple[Array, Array, Array]:
    """Keys, values and their indices that a part of the sequences sees: all, or the window's and its own."""
    if left is None:
        return jax.tree.map(context_parallel.whole, (k, v, key_index))
    before = key_index[:, :1] + jnp.arange(-left, 0)

    def behind_halo(x: Array) -> Array:
        return jnp.concatenate([context_parallel.halo(x, left), x], axis=1)

    return behind_halo(k), behind_halo(v), jnp.concatenate([before, key_index], axis=1)


@compiled
def merge_attention(*parts: tuple[Array, Array]) -> Array:
    """Attention to several disjoint sets of keys as one, of the (y, log_sum) of each."""
    weights = jax.nn.softmax(jnp.stack([log_sum for _, log_sum in parts]), axis=0)
    values = jnp.stack([y for y, _ in parts])
    return jnp.einsum("p...h,p...hv->...hv", weights, values.astype(weights.dtype)).astype(values.dtype)


def _same_segment(start, key_start, mask) -> Bool[Array, "rows N M"]:
    visible = start[:, :, None] == key_start[:, None, :]
    return visible if mask is None else visible & mask[:, None, :]


def _visible(index, start, key_index, left, allowed) -> Bool[Array, "*rows N M"]:
    """Causal visibility from running indices; a key that is not there has a negative index."""
    oldest = start if left is None else jnp.maximum(start, index - left)
    key_index = key_index[..., None, :]
    visible = (key_index <= index[..., None]) & (key_index >= oldest[..., None])
    if allowed is None:
        return visible
    return visible & allowed((index - start)[..., None], key_index - start[..., None])


def attend(q, k, v, visible, scale, return_log_sum=False) -> Any:
    """Dense attention. q: (..., N, H, K); k, v: (..., M, G, dim); visible: (..., N, M).

    Returns y (..., N, H, V), or with `return_log_sum` (y, log_sum (..., N, H)).
    """
    dtype = accumulation_dtype(v)
    *lead, length, heads, width = q.shape
    kv_heads = k.shape[-2]
    q = q.reshape(*lead, length, kv_heads, heads // kv_heads, width)
    scores = jnp.einsum("...ngrk,...mgk->...grnm", q, k.astype(q.dtype), preferred_element_type=dtype) * scale
    visible = visible[..., None, None, :, :]
    scores = jnp.where(visible, scores, jnp.finfo(dtype).min)
    weights = jax.nn.softmax(scores, axis=-1)
    weights = jnp.where(visible, weights, 0)  # a query that sees nothing returns 0
    y = jnp.einsum("...grnm,...mgv->...ngrv", weights.astype(v.dtype), v, preferred_element_type=dtype)
    y = y.reshape(*lead, length, heads, v.shape[-1]).astype(v.dtype)
    if not return_log_sum:
        return y
    log_sum = jnp.moveaxis(jax.nn.logsumexp(scores, axis=-1), -1, -3)
    return y, log_sum.reshape(*lead, length, heads)


def attend_in_blocks(q, k, v, places, key_index, left, chosen, *, scale, allowed, return_log_sum) -> Any:
    """All keys for every query; "xla" goes through blocks of queries and recomputes them backward.

    k, v may be of other tokens than q; key_index (rows, M) says of which, negative for none.
    """
    batch, length = q.shape[:2]
    index, start = (jnp.broadcast_to(x, (x.shape[0], length)) for x in (places.index, places.start))
    if chosen == "reference" or length <= QUERY_BLOCK:
        visible = _visible(index, start, key_index, left, allowed)
        return attend(q, k, v, visible, scale, return_log_sum)
    index, start = (jnp.broadcast_to(x, (batch, length)) for x in (index, start))
    padding = -length % QUERY_BLOCK

    def split(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(batch, -1, QUERY_BLOCK, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def block(args):
        q, index, start = args
        visible = _visible(index, start, key_index, left, allowed)
        return attend(q, k, v, visible, scale, return_log_sum)

    def join(y: Array) -> Array:
        return y.swapaxes(0, 1).reshape(batch, length + padding, *y.shape[3:])[:, :length]

    return jax.tree.map(join, lax.map(block, (split(q), split(index), split(start))))


def _windowed(q, k, v, places, key_index, left, *, scale, allowed, return_log_sum):
    """Blocks of at least `left` queries against their own and the previous block of keys: exact and linear.

    k, v may have keys before the queries' own (a cache); key_index says which token each of them is.
    """
    batch, length = q.shape[:2]
    size = max(left, MIN_WINDOW_BLOCK)
    blocks = -(-length // size)
    behind = blocks * size - length
    before = size - (k.shape[1] - length)

    def pad(x: Array, front: int, value: int = 0) -> Array:
        return jnp.pad(x, [(0, 0), (front, behind)] + [(0, 0)] * (x.ndim - 2), constant_values=value)

    def pairs_of_blocks(x: Array) -> Array:
        x = x.reshape(x.shape[0], blocks + 1, size, *x.shape[2:])
        return jnp.concatenate([x[:, :-1], x[:, 1:]], axis=2)

    def split(x: Array) -> Array:
        return pad(x, 0).reshape(x.shape[0], blocks, size, *x.shape[2:])

    index, start = (jnp.broadcast_to(x, (x.shape[0], length)) for x in (places.index, places.start))
    key_index = pairs_of_blocks(pad(key_index, before, -1))
    visible = _visible(split(index), split(start), key_index, left, allowed)
    keys, values = pairs_of_blocks(pad(k, before)), pairs_of_blocks(pad(v, before))
    y = attend(split(q), keys, values, visible, scale, return_log_sum)
    return jax.tree.map(lambda y: y.reshape(batch, blocks * size, *y.shape[3:])[:, :length], y)
