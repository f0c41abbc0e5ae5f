"""Softmax attention to given keys: densely, in blocks of queries, or in blocks of windows.

What a query sees follows from running indices: of its token, of the first token of its segment, and of each
key, where a negative index is no key.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import accumulation_dtype, cond, finfo
from based_jax.ops.core.chunks import map_chunks, pad_tokens
from based_jax.ops.core.products import is_on_one
from based_jax.ops.core.stream import TokenPositions
from based_jax.typing import Array, Bool, Float, Int

Pattern = Callable[[Array, Array], Array]

BLOCK = 256
"""Slots of a cache per block in decoding on a CPU."""

QUERY_BLOCK = 512
"""Queries per block of the full attention's "xla" form: memory O(block * M) instead of O(N * M)."""

MIN_WINDOW_BLOCK = 16
"""Queries per block of the shortest windows in the "xla" form; see `window_block`."""

MIN_TILED_LENGTH = 256
"""Tokens of the shortest call that `implementation=None` gives to the tiles."""


class AttentionOptions(NamedTuple):
    """How to attend; see `ops.softmax_attention`."""

    causal: bool
    left: int | None
    scale: float
    allowed: Pattern | None
    return_log_sum: bool
    chosen: str


def visible_keys(
    index: Array, start: Array, key_index: Array, left: int | None, allowed: Pattern | None = None
) -> Bool[Array, "*rows N M"]:
    """Return causal visibility from running indices; a missing key has a negative index."""
    oldest = start if left is None else jnp.maximum(start, index - left)
    key_index = key_index[..., None, :]
    visible = (key_index <= index[..., None]) & (key_index >= oldest[..., None])
    if allowed is None:
        return visible
    return visible & allowed((index - start)[..., None], key_index - start[..., None])


def attend(
    q: Float[Array, "... N H K"],
    k: Float[Array, "... M G K"],
    v: Float[Array, "... M G V"],
    visible: Bool[Array, "... N M"],
    scale: Any,
    change: Callable[[Array], Array] = lambda weights: weights,
) -> tuple[Float[Array, "... N H V"], Float[Array, "... N H"]]:
    """Attend densely; return y (0 for a query without visible keys), and log-sums of exponentials.

    `change` is applied to the weights, (..., G, R, N, M).
    """
    dtype, k = accumulation_dtype(v), k.astype(q.dtype)
    scores = jnp.einsum("...ngrk,...mgk->...grnm", _grouped(q, k), k, preferred_element_type=dtype) * scale
    visible = visible[..., None, None, :, :]
    scores = jnp.where(visible, scores, finfo(dtype).min)
    log_sum = jnp.moveaxis(jax.nn.logsumexp(scores, axis=-1), -1, -3).reshape(q.shape[:-1])
    weights = change(jnp.where(visible, jax.nn.softmax(scores, axis=-1), 0)).astype(v.dtype)
    y = jnp.einsum("...grnm,...mgv->...ngrv", weights, v, preferred_element_type=dtype)
    return y.reshape(*q.shape[:-1], v.shape[-1]).astype(v.dtype), log_sum


def way_of(how: AttentionOptions) -> Callable[..., Any]:
    """Return the function that attends to given keys and to no others: in windows or in blocks of queries."""
    return attend_in_windows if how.chosen == "xla" and how.left is not None else attend_in_blocks


def attend_in_blocks(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B M G K"],
    v: Float[Array, "B M G V"],
    tokens: TokenPositions,
    key_index: Int[Array, "rows M"],
    how: AttentionOptions,
) -> Any:
    """Attend to all keys with every query; "xla" goes through blocks of queries and recomputes them backward.

    k, v may be of other tokens than q, those at `tokens`; key_index has their indices, negative for none.
    """
    length = q.shape[1]
    index, start = (jnp.broadcast_to(x, (x.shape[0], length)) for x in (tokens.index, tokens.start))

    def attend_to(
        tokens: tuple[Array, Array, Array], k: Array, v: Array, key_index: Array, sums: bool
    ) -> Any:
        q, index, start = tokens
        visible = visible_keys(index, start, key_index, how.left, how.allowed)
        y, log_sum = attend(q, k, v, visible, how.scale)
        return (y, log_sum) if sums else y

    tokens_of_call = q, index, start
    if how.chosen == "xla" and _continues_long_cache(q, k):
        own = functools.partial(attend_to, tokens_of_call, sums=True)
        y, log_sum = _by_key_blocks(own, k, v, key_index)
        y = y.astype(v.dtype)
        return (y, log_sum) if how.return_log_sum else y
    own = functools.partial(attend_to, key_index=key_index, sums=how.return_log_sum)
    return map_chunks(own, tokens_of_call, length if how.chosen == "reference" else QUERY_BLOCK, k, v)


def _continues_long_cache(q: Array, k: Array) -> bool:
    """Return whether few queries attend to many keys on a CPU, as in decoding.

    XLA would transpose the whole cache for each token, and multiply with its empty slots. Tokens of attn-tiny
    with 4,096 slots take 8 times as long after 64 tokens, 2.7 times after 1,000, and 0.8 times after 3,900.
    """
    return q.shape[1] < min(k.shape[1], MIN_TILED_LENGTH) and k.shape[1] > BLOCK and is_on_one("cpu", q)


def attend_in_windows(
    q: Array, k: Array, v: Array, tokens: TokenPositions, key_index: Array, how: AttentionOptions
) -> Any:
    """Attend from blocks of queries to their own block and those before it in the window: exact and linear.

    k, v may have keys before the queries' own (a cache); key_index has the index of each key's token.
    """
    batch, length = q.shape[:2]
    size = window_block(how.left or 0)
    blocks, before = -(-length // size), -(-(how.left or 0) // size)
    padding = blocks * size - length

    def windows(x: Array, value: int = 0) -> Array:
        x = pad_tokens(x, padding, before * size - (k.shape[1] - length), constant_values=value)
        x = x.reshape(x.shape[0], before + blocks, size, *x.shape[2:])
        return jnp.concatenate([x[:, i : i + blocks] for i in range(before + 1)], axis=2)

    def split(x: Array) -> Array:
        return pad_tokens(x, padding).reshape(x.shape[0], blocks, size, *x.shape[2:])

    index, start = (jnp.broadcast_to(x, (x.shape[0], length)) for x in (tokens.index, tokens.start))
    visible = visible_keys(split(index), split(start), windows(key_index, -1), how.left, how.allowed)
    results = attend(split(q), windows(k), windows(v), visible, how.scale)
    y, log_sum = (y.reshape(batch, blocks * size, *y.shape[3:])[:, :length] for y in results)
    return (y, log_sum) if how.return_log_sum else y


def window_block(left: int) -> int:
    """Return the queries per block of a window of `left` + 1 keys.

    A query is multiplied with all `left` + size keys of its block and of those before it, and a key is copied
    left / size + 1 times: the best size grows with the root of `left`. Compiled for an H200 the bytes of a
    training step are least, within 2 %, at 32 for left = 31, 64 for 63 to 255 and 128 for 511. Tensor
    cores want multiples of 16 rows, and those of Hopper 64.
    """
    unit = MIN_WINDOW_BLOCK
    if left <= 2 * unit:
        return unit * max(1, -(-left // unit))
    return 4 * unit * max(1, round(math.sqrt(left / (8 * unit))))


def _grouped(x: Float[Array, "... N H D"], k: Float[Array, "... M G K"]) -> Float[Array, "... N G R D"]:
    """Group the query heads by the key head that they share."""
    *lead, heads, width = x.shape
    return x.reshape(*lead, k.shape[-2], heads // k.shape[-2], width)


def _by_key_blocks(attend_to: Any, k: Array, v: Array, key_index: Array) -> tuple[Array, Array]:
    """Return `attend_to` (k, v, key_index) from its results for blocks of keys; skip blocks without keys."""
    slots = k.shape[1]

    def step(nothing: None, first: Array) -> tuple[None, Any]:
        begin = jnp.minimum(first, slots - BLOCK)

        def block(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, begin, BLOCK, axis=1)

        # The last block may begin before `first`, among keys of the one before it.
        index = jnp.where(begin + jnp.arange(BLOCK) >= first, block(key_index), -1)

        def attend() -> Any:
            return attend_to(block(k), block(v).astype(accumulation_dtype(v)), index)

        y, log_sum = jax.eval_shape(attend)
        nothing_seen = jnp.zeros(y.shape, y.dtype), jnp.full(log_sum.shape, finfo(log_sum.dtype).min)
        return nothing, cond((index >= 0).any(), attend, lambda: nothing_seen)

    _, (y, log_sum) = lax.scan(step, None, jnp.arange(0, slots, BLOCK))
    return merge(y, log_sum), jax.nn.logsumexp(log_sum, axis=0)


def merge(
    y: Float[Array, " parts *rows V"], log_sum: Float[Array, " parts *rows"]
) -> Float[Array, "*rows V"]:
    """Merge attention to disjoint sets of keys, from the outputs and log-sums of each."""
    weights = jax.nn.softmax(log_sum, axis=0)
    return (weights[..., None] * y.astype(weights.dtype)).sum(axis=0).astype(y.dtype)
