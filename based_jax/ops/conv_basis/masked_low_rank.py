"""Attention with scores of low rank under a structured mask, without the N x N array of scores.

    y_i = sum_{j in S_i} u1_i . u2_j v_j / sum_{j in S_i} u1_i . u2_j        Y = D^-1 (W o U1 U2^T) V

S_i is the set of columns visible to row i (`structured_masks`). With U1 U2^T close to exp(Q K^T / K), as from
`polynomial_map`, this approximates masked softmax attention: entries with relative errors of at most
eps < 0.1 give outputs with errors of at most 4 eps max|v| (Gu et al., "Conv-Basis", Theorem 6.5). All results
are sums of u2_j v_j over S_i (Lemma C.5), with a column of ones appended to V for the normaliser (Lemma C.3):

=====================  ==========================================================  =========================
mask                   sums                                                        operations
=====================  ==========================================================  =========================
`CausalMask`           running (algorithm 4): `linear_attention`                   N F V
`RowChangeMask`        running over changes (algorithm 5): `linear_attention`      (N + sum_j B_j) F V
`IntervalMask`         a segment tree's (algorithm 6): `interval_sums`             N F V log N
`DistinctColumnsMask`  of each part of the columns (Lemma C.10)                    R N F V
`DistinctRowsMask`     of each kind of row (Lemma C.11)                            R N F V
=====================  ==========================================================  =========================

Removing a column subtracts it, so the remainder keeps the rounding error of everything added. For 4096 tokens
with 8 uniform features in float32, causal blocks of 256 had an error of 4e-5 with the paper's steps, and of
4e-7 with restarts (the default of `row_change_mask`) or as intervals. A band of 8 tokens had 2e-6 as changes,
which cannot restart there, and 2e-7 as intervals. Intervals took about four times as long on a CPU (blocks,
N 4096, F 35, V 16, two heads: 64 ms instead of 16).
"""

import jax.numpy as jnp
from jax import lax

from based_jax.ops.conv_basis.interval_sums import interval_sums
from based_jax.ops.conv_basis.structured_masks import (
    CausalMask,
    DistinctColumnsMask,
    DistinctRowsMask,
    IntervalMask,
    RowChangeMask,
    StructuredMask,
)
from based_jax.ops.core.chunks import heads_first
from based_jax.ops.core.dtypes import accumulation_dtype
from based_jax.ops.core.expectations import expect_qkv
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.op import body, op
from based_jax.ops.core.sharding import own_settings
from based_jax.ops.core.transforms import checkpoint, map_rows
from based_jax.ops.linear_attention import linear_attention
from based_jax.typing import Array, Float


@op("xla", "reference", reads_values=True)
def masked_low_rank(
    u1: Float[Array, "B N H F"],
    u2: Float[Array, "B N H F"],
    v: Float[Array, "B N H V"],
    mask: StructuredMask,
    *,
    normalize: bool = True,
    implementation: str | None = None,
) -> Float[Array, "B N H V"]:
    """Attend with weights u1_i . u2_j to the columns j visible to row i.

    Args:
        u1, u2: features of queries and keys; rotary embeddings, if any, come before the map.
        v: values.
        mask: visibility, the same for all rows of the batch and all heads. Its indices are checked unless
            they are traced.
        normalize: divide by the sum of the weights. Rows that see nothing are always 0. If the weights of a
            row cancel, which positive weights cannot, its outputs are not finite.
        implementation: "reference" (quadratic, the mask as a matrix), "xla" or None for the best.

    Returns:
        y in the dtype of v; sums are float32, or float64 for float64 values.
    """
    chosen = choose("masked_low_rank", u1, u2, v, implementation=implementation)
    length = expect_qkv(u1, u2, v, names=("u1", "u2", "v"), width="F").length
    if not isinstance(mask, StructuredMask):
        raise TypeError(f"mask = {mask!r}: expected a mask of based_jax.ops.conv_basis.structured_masks")
    mask.check(length)
    with own_settings():  # masks are NumPy arrays, which must be transferred to the device
        return _masked_low_rank(u1, u2, v, mask, normalize, chosen)


@op()
def _masked_low_rank(
    u1: Array, u2: Array, v: Array, mask: StructuredMask, normalize: bool, chosen: str
) -> Array:
    length = v.shape[1]
    dtype = accumulation_dtype(v)
    compute = _reference if chosen == "reference" else _structured
    u1, u2, columns = (jnp.asarray(x, dtype) for x in (u1, u2, v))
    if normalize:
        columns = jnp.concatenate([columns, jnp.ones((*v.shape[:-1], 1), dtype)], axis=-1)
    y = compute(u1, u2, columns, mask)
    # After subtractions an empty row may hold rounding errors: count its columns to find out.
    empty = (mask.counts(length) == 0)[:, None, None]
    if normalize:
        y = y[..., :-1] / jnp.where(empty, 1, y[..., -1:])
    return jnp.where(empty, 0, y).astype(v.dtype)


def _reference(u1: Array, u2: Array, v: Array, mask: StructuredMask) -> Array:
    weights = jnp.einsum("bihf,bjhf->bhij", u1, u2)
    return jnp.einsum("bhij,bjhv->bihv", jnp.where(mask.dense(u1.shape[1]), weights, 0), v)


def _structured(u1: Array, u2: Array, v: Array, mask: StructuredMask) -> Array:
    match mask:
        case CausalMask():
            return linear_attention(u1, u2, v, normalize=False)
        case RowChangeMask():
            return _by_changes(u1, u2, v, mask)
        case IntervalMask():
            return _by_intervals(u1, u2, v, mask)
        case DistinctColumnsMask() | DistinctRowsMask():
            return _by_parts(u1, u2, v, *mask.factors())


def _by_changes(u1: Array, u2: Array, v: Array, mask: RowChangeMask) -> Array:
    """Run linear attention over the steps: a change is a signed key, a row's query is at its last step."""
    batch, steps = u1.shape[0], len(mask.column)
    sign = jnp.asarray(mask.sign).astype(u2.dtype)[:, None, None]
    queries = jnp.zeros((batch, steps, *u1.shape[2:]), u1.dtype).at[:, mask.step].set(u1, unique_indices=True)
    runs = jnp.broadcast_to(mask.run, (batch, steps))
    keys, values = sign * u2[:, mask.column], v[:, mask.column]
    return linear_attention(queries, keys, values, normalize=False, segment_ids=runs)[:, mask.step]


def _by_intervals(u1: Array, u2: Array, v: Array, mask: IntervalMask) -> Array:
    """Sum one column of v at a time, as in the paper: a tree for all would be V times as large."""
    first, last = jnp.asarray(mask.first), jnp.asarray(mask.last)

    @checkpoint
    def column(v: Float[Array, "B N H"]) -> Float[Array, "B N H"]:
        return jnp.sum(u1 * body(interval_sums)(u2 * v[..., None], first, last), axis=-1)

    return jnp.moveaxis(map_rows(column, jnp.moveaxis(v, -1, 0)), 0, -1)


def _by_parts(u1: Array, u2: Array, v: Array, rows: Array, columns: Array) -> Array:
    """Return the sum over rectangles of rows and their visible columns."""
    u1, u2, v = map(heads_first, (u1, u2, v))

    @checkpoint
    def add(y: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        row, column = (x[:, None].astype(y.dtype) for x in part)
        return y + row * (u1 @ ((column * u2).mT @ v)), None

    return heads_first(lax.scan(add, jnp.zeros_like(v), (rows, columns))[0])
