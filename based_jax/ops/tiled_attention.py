"""Causal softmax attention in tiles of queries and keys that stay in a CPU's caches, in memory O(N).

Each tile of queries iterates over its visible tiles of keys, with the running maximum m of its scores s and
sums of their exponentials (FlashAttention, Dao et al. 2022, Algorithm 1):

    m' = max(m, max_j s_j);  p_j = exp(s_j - m')
    l' = exp(m - m') l + sum_j p_j;  a' = exp(m - m') a + sum_j p_j v_j
    y = a / l;  log_sum = m + log l

The backward pass recomputes a tile's weights from the saved log-sums (Algorithm 4), transposed: the products
for the gradients of keys and values take half the time if they need not transpose them. Heads are processed
one after another: a matrix product of this size uses all cores, a batch of small ones does not. Tiles are
read from and written to arrays of all heads, so that no layout is changed.

Inside, arrays of queries are (B, N, G, R D), with R queries of size D for each of G keys of a token. An axis
of one element, as (B, N, G, 1, D) may have, can cost a copy: XLA gives it another layout.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import accumulation_dtype, finfo, map_arrays, repeat, with_gradient
from based_jax.ops.core.chunks import pad_tokens
from based_jax.typing import Array, Float, Int

ROWS = 1024
"""Queries in a tile, counting all heads that share a key."""

KEYS = 256
"""Keys in a tile. With 1,024 queries the weights take 1 MiB."""

WIDTH = 32
"""Numbers that `row_max` and `row_sum` first reduce a row to; rows of a multiple of it are fast."""


class Tiling(NamedTuple):
    """Sizes of a head's tiles; static."""

    queries: int
    """tokens per tile of queries"""
    keys: int
    """keys per tile"""
    shared: int
    """query heads per key head: rows per token"""


def attend_in_tiles(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    start: Int[Array, "B N"] | None,
    scale: Any,
) -> tuple[Float[Array, "B N H V"], Float[Array, "B N H"]]:
    """Attend from each token to those from `start` (None: 0) to itself; return y and its log-sums."""
    dtype = accumulation_dtype(v)
    batch, length, heads, _ = q.shape
    kv_heads = k.shape[2]
    tiling = _tiling(length, heads // kv_heads)
    q = (q.astype(dtype) * jnp.asarray(scale, dtype)).reshape(batch, length, kv_heads, -1)
    after = -length % tiling.queries
    q, k, v = (pad_tokens(x, after) for x in (q, k, v))
    start = None if start is None else pad_tokens(start, after, mode="edge")
    y, log_sum = _attend(q, k, v, start, tiling)
    y, log_sum = y[:, :length], log_sum[:, :length]
    return y.reshape(batch, length, heads, -1), log_sum.reshape(batch, length, heads)


def _tiling(length: int, shared: int) -> Tiling:
    """Choose the tiles of a head; those of queries begin at the start of a tile of keys."""
    tiles = -(-length * shared // ROWS)
    unit = KEYS if tiles > 1 else WIDTH
    size = -(-length // (tiles * unit)) * unit
    return Tiling(size, min(KEYS, -(-length // WIDTH) * WIDTH), shared)


def _rows(x: Float[Array, "B N G D"], head: Array, first: Array, count: int) -> Float[Array, "count D"]:
    """Return `count` tokens of a head, counted over all rows of the batch."""
    row, head = jnp.divmod(head, x.shape[2])
    return lax.dynamic_slice(x, (row, first, head, 0), (1, count, 1, x.shape[3])).reshape(count, -1)


def _with_rows(x: Float[Array, "B N G D"], rows: Array, head: Array, first: Array) -> Float[Array, "B N G D"]:
    """Return x with a head's tokens from `first` on replaced."""
    row, head = jnp.divmod(head, x.shape[2])
    return lax.dynamic_update_slice(x, rows.reshape(1, -1, 1, x.shape[3]), (row, first, head, 0))


Visit = Callable[[Any, Any, slice, Array, int, Array | None], tuple[Any, Any]]
"""(carry of some query rows, carry of all keys, the rows, the first key, the number of keys, visibility of
these keys to each row or None for all) -> both carries after these keys"""


def _walk(
    visit: Visit, rows: Any, keys: Any, i: Array, start: Array | None, tiling: Tiling, axis: int = 0
) -> tuple[Any, Any]:
    """Call `visit` on each tile of keys visible to tile i of the queries; `axis` (0, -1): of its rows.

    `start`: the first key that each row of the tile sees; None for 0.
    """
    size, own = tiling.keys, i * tiling.queries

    def step(j: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        visible = None if start is None else j * size + jnp.arange(size) >= start[:, None]
        return visit(*carry, slice(None), j * size, size, visible)

    first = 0 if start is None else start.min().astype(own.dtype) // size
    rows, keys = cast(Any, lax.fori_loop)(first, own // size, step, (rows, keys))
    done = list[Any]()
    for begin in range(0, tiling.queries, size):  # the tile's own tokens
        count = min(size, tiling.queries - begin)
        token = jnp.arange((tiling.queries - begin) * tiling.shared) // tiling.shared
        here = slice(begin * tiling.shared, None)
        visible = token[:, None] >= jnp.arange(count)
        if start is not None:
            visible &= own + begin + jnp.arange(count) >= start[here, None]
        rows, keys = visit(rows, keys, here, own + begin, count, visible)
        parts = slice(count * tiling.shared), slice(count * tiling.shared, None)  # the first see no more keys
        head, rows = (map_arrays(itemgetter((..., part) if axis else part), rows) for part in parts)
        done.append(head)
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis), *done), keys


def _map_tiles(
    function: Callable[[Any, Array, Array, Any], Any],
    first: Any,
    q: Array,
    start: Array | None,
    tiling: Tiling,
) -> Any:
    """Call `function` (last result, head, index of a tile, starts of its rows) on all tiles."""
    tiles, size = q.shape[1] // tiling.queries, tiling.queries

    def step(index: Array, carry: Any) -> Any:
        head, i = jnp.divmod(index, tiles)
        own = None
        if start is not None:
            own = lax.dynamic_slice_in_dim(start[head // q.shape[2]], i * size, size)
            own = jnp.repeat(own, tiling.shared)
        return function(carry, head, i, own)

    return repeat(q.shape[0] * q.shape[2] * tiles, step, first)


def _forward(q: Array, k: Array, v: Array, start: Array | None, tiling: Tiling) -> Any:
    size, dtype = tiling.queries, q.dtype
    rows, least = size * tiling.shared, finfo(dtype).min

    def of_tile(results: tuple[Array, Array], head: Array, i: Array, own: Any) -> tuple[Array, Array]:
        queries = _rows(q, head, i * size, size).reshape(rows, -1)

        def visit(rows: Any, keys: Any, here: slice, first: Array, count: int, visible: Array | None) -> Any:
            top, total, y = rows
            some_k, some_v = (_rows(x, head, first, count).astype(dtype) for x in (k, v))
            scores = queries[here] @ some_k.T
            if visible is not None:
                scores = jnp.where(visible, scores, least)
            new = jnp.maximum(top, row_max(scores))
            weights = jnp.exp(scores - new[:, None])
            if start is not None and visible is not None:  # a row may have no visible key so far
                weights = jnp.where(visible, weights, 0)
            old = jnp.exp(top - new)
            y = y * old[:, None] + weights @ some_v
            return (new, total * old + row_sum(weights), y), keys

        blank = (jnp.full(rows, least), jnp.zeros(rows, dtype), jnp.zeros((rows, v.shape[-1]), dtype))
        (top, total, y), _ = _walk(visit, blank, None, i, own, tiling)
        of_rows = zip(results, (y / total[:, None], top + jnp.log(total)), strict=True)
        y, log_sum = (_with_rows(*x, head, i * size) for x in of_rows)
        return y, log_sum

    sizes = (tiling.shared * v.shape[3], tiling.shared)
    nothing = tuple(jnp.zeros((*q.shape[:3], size), dtype) for size in sizes)
    y, log_sum = _map_tiles(of_tile, nothing, q, start, tiling)
    return (y, log_sum), (q, k, v, start, y, log_sum)


def _backward(tiling: Tiling, saved: Any, cotangents: tuple[Array, Array]) -> Any:
    q, k, v, start, y, log_sum = saved
    of_y, of_log_sum = cotangents
    size, dtype, shared = tiling.queries, q.dtype, tiling.shared
    # The gradient of a softmax subtracts this mean from the gradient of each weight.
    mean = (of_y * y).reshape(*log_sum.shape, -1).sum(axis=-1) - of_log_sum

    def of_tile(gradients: tuple[Array, ...], head: Array, i: Array, own: Any) -> tuple[Array, ...]:
        of_q, *of_keys = gradients
        of_rows = (_rows(x, head, i * size, size) for x in (q, of_y, log_sum, mean))
        queries, outputs, sums, means = (x.reshape(size * shared, -1) for x in of_rows)
        sums, means = sums[:, 0], means[:, 0]
        queries_t, outputs_t = queries.T, outputs.T

        def visit(rows: Any, keys: Any, here: slice, first: Array, count: int, visible: Array | None) -> Any:
            some_k, some_v = (_rows(x, head, first, count).astype(dtype) for x in (k, v))
            weights = jnp.exp(some_k @ queries_t[:, here] - sums[here])
            if visible is not None:
                weights = jnp.where(visible.T, weights, 0)
            of_scores = weights * (some_v @ outputs_t[:, here] - means[here])
            parts = of_scores @ queries[here], weights @ outputs[here]
            keys = tuple(
                _with_rows(x, _rows(x, head, first, count) + part, head, first)
                for x, part in zip(keys, parts, strict=True)
            )
            return rows + some_k.T @ of_scores, keys

        part, of_keys = _walk(visit, jnp.zeros_like(queries_t), tuple(of_keys), i, own, tiling, axis=-1)
        return _with_rows(of_q, part.T, head, i * size), *of_keys

    nothing = tuple(jnp.zeros(x.shape, dtype) for x in (q, k, v))
    of_q, of_k, of_v = _map_tiles(of_tile, nothing, q, start, tiling)
    return of_q, of_k.astype(k.dtype), of_v.astype(v.dtype), None


@with_gradient(lambda *arguments: _forward(*arguments), _backward, nondiff_argnums=(4,))
def _attend(q: Array, k: Array, v: Array, start: Array | None, tiling: Tiling) -> tuple[Array, Array]:
    """Return the outputs (B, N, G, R V) and log-sums (B, N, G, R)."""
    return _forward(q, k, v, start, tiling)[0]


def row_max(x: Float[Array, "*rows N"]) -> Float[Array, "*rows"]:
    """Return the maximum of each row, in two steps that XLA's CPU compiler vectorizes.

    It turns a reduction of more than 32 neighbours into windows of 32 (`TreeReductionRewriter`) and computes
    these number by number: the maximum of a 1,024 x 256 matrix takes 11 times as long, and a training step of
    attn-tiny (8 x 256 bytes, float32, 2 cores) 3 to 5 % more time.
    """
    return _in_two_steps(lambda x, axis: x.max(axis=axis), x)


def row_sum(x: Float[Array, "*rows N"]) -> Float[Array, "*rows"]:
    """Return the sum of each row; see `row_max`."""
    return _in_two_steps(lambda x, axis: x.sum(axis=axis), x)


def _in_two_steps(reduce: Callable[[Array, int], Array], x: Array) -> Array:
    size = x.shape[-1]
    if size > WIDTH and size % WIDTH == 0:
        partial: Any = reduce(x.reshape(*x.shape[:-1], size // WIDTH, WIDTH), -2)
        x = lax.optimization_barrier(partial)  # XLA would merge both steps
    return reduce(x, -1)
