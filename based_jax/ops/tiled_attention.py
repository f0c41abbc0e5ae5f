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

from based_jax.ops.core.arrays import accumulation_dtype, finfo, map_arrays
from based_jax.ops.core.chunks import pad_tokens
from based_jax.ops.core.transforms import repeat, with_gradient
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
    tiling = _tiling(length, k.shape[1], heads // kv_heads, positions is None)
    sizes = (tiling.queries, tiling.queries if positions is None else tiling.keys)
    q = (q.astype(dtype) * jnp.asarray(scale, dtype)).reshape(batch, length, kv_heads, -1)
    q, k, v = _padded(q, sizes[0]), _padded(k, sizes[1]), _padded(v, sizes[1])
    if positions is not None:
        parts = zip(positions, (sizes[0], *sizes), strict=True)
        positions = Positions(*(_padded(x, size, constant_values=-1) for x, size in parts))
    y, log_sum = _attend(q, k, v, positions, tiling)
    y, log_sum = y[:, :length], log_sum[:, :length]
    return y.reshape(batch, length, heads, -1), log_sum.reshape(batch, length, heads)


def _tiling(length: int, keys: int, shared: int, is_aligned: bool) -> Tiling:
    """Choose the tiles of a head; aligned tiles of queries begin at the start of a tile of keys."""
    rows = ROWS
    if not is_aligned:  # all of a tile's rows visit its last keys: with fewer rows, fewer of them in vain
        rows = max(ROWS // 2, min(ROWS, length * shared // 4))
    tiles = -(-length * shared // rows)
    unit = KEYS if tiles > 1 else WIDTH
    size = -(-length // (tiles * unit)) * unit if is_aligned else -(-length // tiles)
    return Tiling(size, min(KEYS, -(-keys // WIDTH) * WIDTH), shared)


def _padded(x: Array, size: int, **how: Any) -> Array:
    """Return x, (B, tokens, ...), padded to whole tiles of `size` tokens."""
    after = -x.shape[1] % size
    return pad_tokens(x, after, **how) if after else x


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
    visit: Visit, rows: Any, keys: Any, i: Array, positions: Any, tiling: Tiling, axis: int = 0
) -> tuple[Any, Any]:
    """Call `visit` on each tile of keys visible to tile i of the queries; see `Visit`.

    Args:
        axis: 0 or -1, the axis of the rows in their carry.
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
        parts = slice(count * tiling.shared), slice(count * tiling.shared, None)  # the first see no more keys
        head, rows = (map_arrays(itemgetter((..., part) if axis else part), rows) for part in parts)
        done.append(head)
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis), *done), keys


def _positions_of_tile(positions: Any, row: Array, i: Array, tiling: Tiling) -> Any:
    if positions is None:
        return None
    index, start, key_index = (x[row] for x in positions)
    own = (lax.dynamic_slice_in_dim(x, i * tiling.queries, tiling.queries) for x in (index, start))
    return *(jnp.repeat(x, tiling.shared) for x in own), key_index


def _map_tiles(
    function: Callable[[Any, Array, Array, Any], Any], first: Any, q: Array, positions: Any, tiling: Tiling
) -> Any:
    """Call `function` (last result, head, index of a tile, its positions) on all tiles; return the result."""
    tiles = q.shape[1] // tiling.queries

    def step(index: Array, carry: Any) -> Any:
        head, i = jnp.divmod(index, tiles)
        return function(carry, head, i, _positions_of_tile(positions, head // q.shape[2], i, tiling))

    return repeat(q.shape[0] * q.shape[2] * tiles, step, first)


def _forward(q: Array, k: Array, v: Array, positions: Any, tiling: Tiling) -> Any:
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
            if positions is not None and visible is not None:  # a row may have no visible key so far
                weights = jnp.where(visible, weights, 0)
            old = jnp.exp(top - new)
            y = y * old[:, None] + weights @ some_v
            return (new, total * old + row_sum(weights), y), keys

        blank = (jnp.full(rows, least), jnp.zeros(rows, dtype), jnp.zeros((rows, v.shape[-1]), dtype))
        (top, total, y), _ = _walk(visit, blank, None, i, own, tiling)
        sees = total > 0
        total = jnp.where(sees, total, 1)
        log_sum = jnp.where(sees, top + jnp.log(total), least)
        y, log_sum = (
            _with_rows(*x, head, i * size) for x in zip(results, (y / total[:, None], log_sum), strict=True)
        )
        return y, log_sum

    sizes = (tiling.shared * v.shape[3], tiling.shared)
    nothing = tuple(jnp.zeros((*q.shape[:3], size), dtype) for size in sizes)
    y, log_sum = _map_tiles(of_tile, nothing, q, positions, tiling)
    return (y, log_sum), (q, k, v, positions, y, log_sum)


def _backward(tiling: Tiling, saved: Any, cotangents: tuple[Array, Array]) -> Any:
    q, k, v, positions, y, log_sum = saved
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
    of_q, of_k, of_v = _map_tiles(of_tile, nothing, q, positions, tiling)
    return of_q, of_k.astype(k.dtype), of_v.astype(v.dtype), None


@with_gradient(lambda *arguments: _forward(*arguments), _backward, nondiff_argnums=(4,))
def _attend(q: Array, k: Array, v: Array, positions: Any, tiling: Tiling) -> tuple[Array, Array]:
    """Return the outputs (B, N, G, R V) and log-sums (B, N, G, R)."""
    return _forward(q, k, v, positions, tiling)[0]


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
