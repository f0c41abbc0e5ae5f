"""Causal softmax attention in tiles of queries and keys that stay in a CPU's caches, in memory O(N).

Each tile of queries iterates over its visible tiles of keys, with the running maximum m of its scores s and
sums of their exponentials (FlashAttention, Dao et al. 2022, Algorithm 1):

    m' = max(m, max_j s_j);  p_j = exp(s_j - m')
    l' = exp(m - m') l + sum_j p_j;  a' = exp(m - m') a + sum_j p_j v_j
    y = a / l;  log_sum = m + log l

The backward pass recomputes a tile's weights from the saved log-sums (Algorithm 4). Heads are processed one
after another: a matrix product of this size uses all cores, a batch of small ones does not.
"""

import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import map_arrays
from based_jax.ops.core.chunks import pad_tokens
from based_jax.ops.core.dtypes import accumulation_dtype, finfo
from based_jax.ops.core.transforms import map_rows, with_gradient
from based_jax.typing import Array, Float, Int

ROWS = 1024
"""Queries in a tile, counting all heads that share a key."""

KEYS = 256
"""Keys in a tile. With 1,024 queries the weights take 1 MiB."""


class Tiling(NamedTuple):
    """Sizes of a head's tiles; static."""

    queries: int
    """tokens per tile of queries"""
    keys: int
    """keys per tile"""
    shared: int
    """query heads per key head: rows per token"""


class Positions(NamedTuple):
    """Visible keys of a query if tiles are not aligned: those from `start` to `token`, per row."""

    token: Int[Array, "B N"]
    start: Int[Array, "B N"]
    key_index: Int[Array, "B M"]


def attend_in_tiles(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B M G K"],
    v: Float[Array, "B M G V"],
    positions: Positions | None,
    scale: Any,
) -> tuple[Float[Array, "B N H V"], Float[Array, "B N H"]]:
    """Attend causally; return y and the logarithm of each query's sum of exponentials.

    Args:
        positions: the visible keys, or None if keys and queries are those of the same tokens and every query
            sees all keys up to its own. A query without visible keys returns 0.
        scale: factor of the scores.
    """
    dtype = accumulation_dtype(v)
    batch, length, heads, _ = q.shape
    kv_heads = k.shape[2]
    shared = heads // kv_heads
    tiling = _tiling(length, k.shape[1], shared, positions is None)
    q = _per_head(q.astype(dtype) * jnp.asarray(scale, dtype), kv_heads, tiling.queries)
    k, v = (
        _per_head(x.astype(dtype), kv_heads, tiling.queries if positions is None else tiling.keys)
        for x in (k, v)
    )
    if positions is not None:
        sizes = (tiling.queries, tiling.queries, tiling.keys)
        padded = (
            pad_tokens(x, -x.shape[1] % size, constant_values=-1)
            for x, size in zip(positions, sizes, strict=True)
        )
        positions = Positions(*(jnp.repeat(x, kv_heads, axis=0) for x in padded))
    y, log_sum = _heads(q, k, v, positions, tiling)
    y, log_sum = (
        x.reshape(batch, kv_heads, -1, shared, *x.shape[2:]).swapaxes(1, 2)[:, :length] for x in (y, log_sum)
    )
    return y.reshape(batch, length, heads, -1), log_sum.reshape(batch, length, heads)


def _tiling(length: int, keys: int, shared: int, is_aligned: bool) -> Tiling:
    """Choose the tiles of a head; aligned tiles of queries begin at the start of a tile of keys."""
    rows = ROWS
    if not is_aligned:  # all of a tile's rows visit its last keys: with fewer rows, fewer of them in vain
        rows = max(ROWS // 2, min(ROWS, length * shared // 4))
    tiles = -(-length * shared // rows)
    size = -(-length // tiles)
    if tiles > 1 and is_aligned:
        size = -(-size // KEYS) * KEYS
    return Tiling(size, min(KEYS, keys), shared)


def _per_head(x: Float[Array, "B N H D"], kv_heads: int, size: int) -> Float[Array, "heads rows D"]:
    """Return (B G, N R, D): the rows of each key head, padded to whole tiles of `size` tokens."""
    x = pad_tokens(x, -x.shape[1] % size)
    batch, length, heads, channels = x.shape
    x = x.reshape(batch, length, kv_heads, heads // kv_heads, channels).swapaxes(1, 2)
    return x.reshape(batch * kv_heads, -1, channels)


Visit = Callable[[Any, Any, slice, Array, int, Array | None], tuple[Any, Any]]
"""(carry of some query rows, carry of all keys, the rows, the first key, the number of keys, visibility of
these keys to each row or None for all) -> both carries after these keys"""


def _walk(visit: Visit, rows: Any, keys: Any, i: Array, positions: Any, tiling: Tiling) -> tuple[Any, Any]:
    """Call `visit` on each tile of keys visible to tile i of the queries; see `Visit`.

    Args:
        positions: index and start of the tile's rows, and the indices of all keys, if tiles are not aligned.
    """
    size = tiling.keys

    def visits(begin: Any, end: Any, visible: Callable[[Array], Array | None]) -> tuple[Any, Any]:
        def step(j: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            return visit(*carry, slice(None), j * size, size, visible(j))

        return cast(tuple[Any, Any], lax.fori_loop(begin, end, step, (rows, keys)))

    if positions is not None:
        index, start, key_index = positions
        tiles, start = key_index.reshape(-1, size), jnp.maximum(start, 0)
        oldest = jnp.where(tiles < 0, jnp.iinfo(tiles.dtype).max, tiles).min(axis=1)
        is_seen = (tiles.max(axis=1) >= start.min()) & (oldest <= index.max())
        first, last = jnp.argmax(is_seen), len(is_seen) - jnp.argmax(is_seen[::-1])
        last = jnp.where(is_seen.any(), last, first)
        # Tiles of which every token sees all keys need no mask; padding of the queries (-1) is not a token.
        tokens = jnp.where(index < 0, jnp.iinfo(index.dtype).max, index)
        is_whole = (tiles.min(axis=1) >= start.max()) & (tiles.max(axis=1) <= tokens.min())
        is_masked = jnp.append(~is_whole, True) & (jnp.arange(len(tiles) + 1) >= first)

        def visible(j: Array) -> Array:
            there = tiles[j]
            return (there >= start[:, None]) & (there <= index[:, None])

        masked = jnp.minimum(jnp.argmax(is_masked), last)
        rows, keys = visits(first, masked, lambda j: None)
        return visits(masked, last, visible)

    if tiling.queries % size == 0:  # else this is the only tile
        rows, keys = visits(0, i * (tiling.queries // size), lambda j: None)
    done = list[Any]()
    for begin in range(0, tiling.queries, size):  # the tile's own tokens
        count = min(size, tiling.queries - begin)
        token = jnp.arange((tiling.queries - begin) * tiling.shared) // tiling.shared
        here = slice(begin * tiling.shared, None)
        earlier = token[:, None] >= jnp.arange(count)
        rows, keys = visit(rows, keys, here, i * tiling.queries + begin, count, earlier)
        head, rows = (map_arrays(itemgetter(part), rows) for part in _parts(count * tiling.shared))
        done.append(head)
    return jax.tree.map(lambda *x: jnp.concatenate(x), *done), keys


def _parts(count: int) -> tuple[slice, slice]:
    """Return the first `count` rows, which see no later keys, and the others."""
    return slice(count), slice(count, None)


def _tile(x: Array, i: Array, size: int) -> Array:
    return lax.dynamic_slice_in_dim(x, i * size, size)


def _positions_of_tile(positions: Any, i: Array, tiling: Tiling) -> Any:
    if positions is None:
        return None
    index, start, key_index = positions
    index, start = (jnp.repeat(_tile(x, i, tiling.queries), tiling.shared) for x in (index, start))
    return index, start, key_index


def _head(head: Any, tiling: Tiling) -> tuple[Array, Array]:
    """Return outputs (rows, V) and log-sums (rows,) of one head: queries (rows, K), keys, values (M, ...)."""
    q, k, v, positions = head
    size = tiling.queries * tiling.shared
    least = finfo(q.dtype).min

    def of_tile(i: Array) -> tuple[Array, Array]:
        queries = _tile(q, i, size)

        def visit(rows: Any, keys: Any, here: slice, first: Array, count: int, visible: Array | None) -> Any:
            top, total, y = rows
            scores = queries[here] @ lax.dynamic_slice_in_dim(k, first, count).T
            if visible is not None:
                scores = jnp.where(visible, scores, least)
            new = jnp.maximum(top, scores.max(axis=1))
            weights = jnp.exp(scores - new[:, None])
            if positions is not None and visible is not None:  # a row may have no visible key so far
                weights = jnp.where(visible, weights, 0)
            old = jnp.exp(top - new)
            y = y * old[:, None] + weights @ lax.dynamic_slice_in_dim(v, first, count)
            return (new, total * old + weights.sum(axis=1), y), keys

        blank = (jnp.full(size, least), jnp.zeros(size, q.dtype), jnp.zeros((size, v.shape[1]), q.dtype))
        own = _positions_of_tile(positions, i, tiling)
        (top, total, y), _ = _walk(visit, blank, None, i, own, tiling)
        sees = total > 0
        total = jnp.where(sees, total, 1)
        return y / total[:, None], jnp.where(sees, top + jnp.log(total), least)

    y, log_sum = map_rows(of_tile, jnp.arange(len(q) // size))
    return y.reshape(len(q), -1), log_sum.reshape(-1)


def _head_gradients(head: Any, tiling: Tiling) -> tuple[Array, Array, Array]:
    """Return the gradients of one head's queries, keys and values."""
    q, k, v, positions, y, log_sum, of_y, of_log_sum = head
    size = tiling.queries * tiling.shared
    # The gradient of a softmax subtracts this mean from the gradient of each weight.
    mean = (of_y * y).sum(axis=1) - of_log_sum

    def of_tile(gradients: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], Array]:
        queries, cotangents = _tile(q, i, size), _tile(of_y, i, size)
        sums, means = _tile(log_sum, i, size), _tile(mean, i, size)

        def visit(rows: Any, keys: Any, here: slice, first: Array, count: int, visible: Array | None) -> Any:
            of_k, of_v = keys
            some_k, some_v = (lax.dynamic_slice_in_dim(x, first, count) for x in (k, v))
            weights = jnp.exp(queries[here] @ some_k.T - sums[here, None])
            if visible is not None:
                weights = jnp.where(visible, weights, 0)
            of_scores = weights * (cotangents[here] @ some_v.T - means[here, None])
            of_v = _add(of_v, first, weights.T @ cotangents[here])
            of_k = _add(of_k, first, of_scores.T @ queries[here])
            return rows + of_scores @ some_k, (of_k, of_v)

        own = _positions_of_tile(positions, i, tiling)
        of_q, gradients = _walk(visit, jnp.zeros_like(queries), gradients, i, own, tiling)
        return gradients, of_q

    nothing = jnp.zeros_like(k), jnp.zeros_like(v)
    (of_k, of_v), of_q = lax.scan(of_tile, nothing, jnp.arange(len(q) // size))
    return of_q.reshape(q.shape), of_k, of_v


def _add(x: Array, first: Array, part: Array) -> Array:
    """Return x with `part` added to its rows from `first` on."""
    sums = lax.dynamic_slice_in_dim(x, first, len(part)) + part
    return lax.dynamic_update_slice_in_dim(x, sums, first, axis=0)


def _forward(q: Array, k: Array, v: Array, positions: Any, tiling: Tiling) -> Any:
    y, log_sum = map_rows(functools.partial(_head, tiling=tiling), (q, k, v, positions))
    return (y, log_sum), (q, k, v, positions, y, log_sum)


def _backward(tiling: Tiling, saved: Any, cotangents: tuple[Array, Array]) -> Any:
    gradients = map_rows(functools.partial(_head_gradients, tiling=tiling), (*saved, *cotangents))
    return *gradients, None


@with_gradient(lambda *arguments: _forward(*arguments), _backward, nondiff_argnums=(4,))
def _heads(q: Array, k: Array, v: Array, positions: Any, tiling: Tiling) -> tuple[Array, Array]:
    """Return the outputs (heads, rows, V) and log-sums (heads, rows), head by head."""
    return _forward(q, k, v, positions, tiling)[0]
