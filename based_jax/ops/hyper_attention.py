"""HyperAttention: a softmax over tuples of tokens (Ustaomeroglu and Qu, section 6.1 and appendix G).

    y_i = sum_{j_1 .. j_m} softmax(scale sum_r q_i k1_{j_1} .. km_{j_m}) v1_{j_1} * .. * vm_{j_m},   m = n - 1

Order n = 2 is attention. Queries, keys and values are the low-rank factors of definitions G.1 (the same keys
and values in all slots) and G.3 (one of each per slot); the last factor V^n, a linear map of the outputs, is
part of the caller's output map.

The tuples have j_1 >= j_2 >= .. (definition G.1; strictly, remark G.2). The paper prints this as a factor of
the scores, but only an additive mask excludes a tuple. It gives no causal rule, although it trains language
models: i >= j_1 is ours.

A tuple's score is that of j_2 .. j_m with the query q_i * k1_{j_1}. So the softmax over tuples is a softmax
over j_1 of attentions of order n - 1, each with its log-sum. The largest arrays are the scores of a block of
queries.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.attention_to_keys import attend, visible_keys
from based_jax.ops.core.arrays import accumulation_dtype, append, finfo, map_arrays
from based_jax.ops.core.chunks import map_chunks, pad_tokens
from based_jax.ops.core.kv_cache import KVCache, expect_cache, keys_after, nan_where_outgrown, write
from based_jax.ops.core.op import expect_scale, op, with_number
from based_jax.ops.core.stream import continue_from
from based_jax.ops.softmax_attention import softmax_attention
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import expect, expect_array

SCORES = 2**22
"""Maximum scores computed at a time (16 MiB), which limits the queries per block, but at least one query. On
a CPU 256^3 scores took 0.7 s with 2^20 and 2^22, and 2.0 s with 2^24."""

MIN_WINDOW_BLOCK = 16
"""Minimum queries per block in a window; else half the window. A block sees its window and itself."""


def hyper_attention(
    q: Float[Array, "B N H K"],
    ks: tuple[Float[Array, "B N H K"], ...],
    vs: tuple[Float[Array, "B N H V"], ...],
    *,
    causal: bool = True,
    ordered: bool = True,
    strict: bool = False,
    left: int | None = None,
    scale: Scale = 1.0,
    initial_state: KVCache | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Any:
    """Run HyperAttention of order n = len(ks) + 1, in B H N M^(n - 1) (K + V) multiplications for M keys.

    Scores and softmax are float32 (float64 for float64 values). Returns y, (B, N, H, V): at masked tokens
    finite but meaningless. Without a window, all outputs of a row that exceeds its cache are NaN: under
    `jit` no error can be raised. Shared arguments, results and errors: `help(based_jax.ops)`.

    Args:
        q: queries.
        ks, vs: keys and values of the slots j_1, j_2, ...; the same array for every slot shares them.
        causal: every j <= i.
        ordered: j_1 >= j_2 >= ...; False takes all tuples.
        strict: j_1 > j_2 > ...; outputs are 0 where there is no such tuple. No effect for order 2.
        left: every j >= i - left; None for no limit. Needs `causal`.
        scale: factor of the scores (the paper has none).
        initial_state: cache to continue from, `init_kv_cache` with key_size K and value_size V if the slots
            share their array, else len(ks) K and len(ks) V: `left` + 1 slots of the cache for a window,
            otherwise as many as the text may have tokens. Needs `causal`. A step reads every slot of the
            cache for every slot of the tuple.
        return_state: needs `initial_state`.

    Raises:
        ValueError: a text longer than the cache, if lengths are known.
    """
    check_hyper_attention(q, ks, vs, ordered, strict)
    q, scale = with_number(q, expect_scale(scale, 1))
    call: dict[str, Any] = {"initial_state": initial_state, "segment_ids": segment_ids, "mask": mask}
    if len(ks) == 1:
        return softmax_attention(
            q, ks[0], vs[0], return_state=return_state, causal=causal, left=left, scale=scale, **call
        )
    (k, share_k), (v, share_v) = _packed(ks), _packed(vs)
    sizes = (*k.shape, v.shape[-1])
    expect_cache(initial_state, sizes, causal=causal, left=left, return_state=return_state, mask=mask)
    tuples = _Tuples(len(ks), (share_k, share_v), causal, ordered, strict, left, scale)
    return _attend_to_tuples(q, k, v, tuples, return_state=return_state, **call)


def check_hyper_attention(
    q: Array, ks: tuple[Array, ...], vs: tuple[Array, ...], ordered: bool, strict: bool
) -> None:
    """Check that queries, keys and values of every slot fit together, and the options of their order."""
    expect_array("q", q, ("B", "N", "H", "K"), "floating")
    for name, slots in (("ks", ks), ("vs", vs)):
        expect(isinstance(slots, tuple | list), name, type(slots), "a tuple of an array for each slot")
    expect(len(ks) >= 1, "number of ks", len(ks), "at least 1: the order minus 1")
    expect(len(vs) == len(ks), "number of vs", len(vs), f"{len(ks)}, the number of ks")
    for slot, k in enumerate(ks):
        expect_array(f"ks[{slot}]", k, q.shape, "floating")
    expect_array("vs[0]", vs[0], (*q.shape[:3], "V"), "floating")
    for slot, v in enumerate(vs):
        expect_array(f"vs[{slot}]", v, vs[0].shape, "floating")
    expect(ordered or not strict, "strict", strict, "False if ordered is False")


def _packed(arrays: tuple[Array, ...]) -> tuple[Array, bool]:
    """Return the array that a cache stores (shared by the slots or concatenated), and if it is shared."""
    shared = all(x is arrays[0] for x in arrays)
    return (arrays[0] if shared else jnp.concatenate(arrays, axis=-1)), shared


class _Tuples(NamedTuple):
    """Options that select tuples of keys; see `hyper_attention`."""

    slots: int
    shared: tuple[bool, bool]
    """whether all slots have the same keys, and the same values"""
    causal: bool
    ordered: bool
    strict: bool
    left: int | None
    scale: float


class _Keys(NamedTuple):
    """The M visible keys of a call and their positions; see `stream.TokenPositions`."""

    k: Float[Array, "B M H slots_K"]
    v: Float[Array, "B M H slots_V"]
    index: Int[Array, "rows M"]  # pyright: ignore[reportIncompatibleMethodOverride]: the tuple's method goes
    """negative in empty slots"""
    start: Int[Array, "rows M"] | None
    """start of their segment; None for a causal call, which does not need it"""


@op(rows=("q", "k", "v", "segment_ids", "mask"))
def _attend_to_tuples(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H slots_K"],
    v: Float[Array, "B N H slots_V"],
    tuples: _Tuples,
    *,
    initial_state: KVCache | None,
    segment_ids: Int[Array, "B N"] | None,
    mask: Bool[Array, "B N"] | None,
    return_state: bool = False,
) -> Any:
    slots, shared, causal, ordered, strict, left, scale = tuples
    batch, length = q.shape[:2]
    cache = initial_state
    if cache is None and left is not None and left >= length - 1:
        left = None
    call = continue_from(cache, batch, length, segment_ids, mask)
    q, k, v = call.unpadded((q, k, v))

    index = call.tokens.index
    start = jnp.broadcast_to(call.tokens.start, (call.tokens.start.shape[0], length))
    own = _Keys(k, v, call.key_index, None if causal else start)
    written = None
    if cache is None and left is None:
        keys = own
    elif cache is None:
        before = jnp.full((own.index.shape[0], left), -1)
        none = [jnp.zeros_like(x, shape=(batch, left, *x.shape[2:])) for x in (k, v)]
        keys = append(_Keys(none[0], none[1], before, None), own)
    else:
        written = write(cache, k, v, call.tokens, call.after)
        keys = _Keys(*keys_after(cache, written, k, v, call, left), None)

    dtype = accumulation_dtype(v)
    q, keys = q.astype(dtype) * scale, keys._replace(k=keys.k.astype(dtype), v=keys.v.astype(dtype))

    def block(q: Array, index: Array, start: Array, keys: _Keys) -> Array:
        if keys.start is None:
            visible = visible_keys(index, start, keys.index, left)
        else:
            visible = (keys.start[:, None] == start[:, :, None]) & (keys.index[:, None] >= 0)
        first, second = keys.index[:, :, None], keys.index[:, None]
        in_order = first > second if strict else first >= second
        ks, vs = (
            [x] * slots if same else jnp.split(x, slots, axis=-1)
            for x, same in zip((keys.k, keys.v), shared, strict=True)
        )
        return _attend(q, ks, vs, visible, in_order if ordered else None)[0]

    y = _in_blocks(block, q, index, start, keys, left, slots).astype(v.dtype)
    if written is not None and left is None:
        y = nan_where_outgrown(written, y)
    return (y, written) if return_state else y


def _attend(
    q: Array, ks: Sequence[Array], vs: Sequence[Array], visible: Array, tuples: Array | None
) -> tuple[Float[Array, "B N H V"], Float[Array, "B N H"]]:
    """Return the mean over all tuples and the logarithm of the sum of their exponentials.

    q: (B, N, H, K); ks, vs: (B, M, H, dim) of each slot; visible: (rows, N, M); tuples: (rows, M, M) or None.
    """
    if len(ks) == 1:
        return attend(q, ks[0], vs[0], visible, 1.0)
    batch, length, heads, width = q.shape
    count = ks[0].shape[1]
    queries = (q[:, :, None] * ks[0][:, None]).reshape(batch, length * count, heads, width)
    visible_next = visible[:, :, None] if tuples is None else visible[:, :, None] & tuples[:, None]
    rows = visible_next.shape[0]
    visible_next = jnp.broadcast_to(visible_next, (rows, length, count, count)).reshape(rows, -1, count)
    y, log_sum = _attend(queries, ks[1:], vs[1:], visible_next, tuples)
    y, log_sum = (x.reshape(batch, length, count, *x.shape[2:]) for x in (y, log_sum))
    visible = visible[..., None]
    log_sum = jnp.where(visible, log_sum, finfo(log_sum.dtype).min)
    weights = jnp.where(visible, jax.nn.softmax(log_sum, axis=2), 0)
    y = jnp.einsum("bnmh,bmhv,bnmhv->bnhv", weights, vs[0], y)
    return y, jax.nn.logsumexp(log_sum, axis=2)


def _in_blocks(
    block: Callable[[Array, Array, Array, _Keys], Array],
    q: Float[Array, "B N H K"],
    index: Int[Array, "rows N"],
    start: Int[Array, "rows N"],
    keys: _Keys,
    left: int | None,
    slots: int,
) -> Float[Array, "B N H V"]:
    """Run `block` for as many queries at a time as `SCORES` allows; the backward pass recomputes them.

    In a window a block gets its own keys and the `left` before them. In exports for any batch size, `SCORES`
    limits each row instead, because blocks have one size.
    """
    batch, length, heads, _ = q.shape
    count = keys.index.shape[1]
    most, span = length, count
    if left is not None:
        most = max(left // 2, MIN_WINDOW_BLOCK)
        span = left + most
    rows = batch if isinstance(batch, int) else 1
    size = min(length, most, max(1, SCORES // (rows * heads * span**slots)))
    span += size - most
    if size == length:
        return block(q, index, start, keys)
    if left is not None:
        k, v = (pad_tokens(x, -length % size) for x in (keys.k, keys.v))
        keys = _Keys(k, v, pad_tokens(keys.index, -length % size, constant_values=-1), None)

    def one(tokens: tuple[Array, ...]) -> Array:
        q, index, start, offset = tokens
        near = keys
        if left is not None:
            near = map_arrays(lambda x: lax.dynamic_slice_in_dim(x, offset[0, 0], span, axis=1), keys)
        return block(q, index, start, near)

    return map_chunks(one, (q, index, start, jnp.arange(length)[None]), size)
