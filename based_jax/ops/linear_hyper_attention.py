"""HyperAttention without a softmax, linear in the length (Ustaomeroglu and Qu, definition 6.1, appendix G.3).

    y_i = sum_{j_1 .. j_m} (sum_f q_i k1_{j_1} ... km_{j_m}) v1_{j_1} * ... * vm_{j_m},   m = n - 1

q and k may be features phi(scale q), phi(k). The sum over tuples factors (F x V matrices, * elementwise):

    all tuples (the paper's form)   y_i = q_i (S_1 * .. * S_m),  S_a = sum_j k_j v_j^T of slot a
    all tuples of j <= i            the same with sums up to i
    i >= j_1 >= j_2 >= ..           y_i = q_i S_1(i),  S_a(i) = S_a(i - 1) + (k_i v_i^T of a) * S_{a+1}(i)
    i >= j_1 > j_2 > ..             the same with S_{a+1}(i - 1)

Only the first is the paper's, the others are ours: m matrices per head, whatever the length. They are
carried between chunks and computed for each token of a chunk. Two ordered slots need no matrix per token:
with P_ij = q_i * k1_j and the matrices S before the chunk,

    y_i = q_i S_1 + sum_{j <= i} v1_j * (P_ij S_2 + sum_{l <= j} (P_ij . k2_l) v2_l)

takes products of C tokens with C: C^2 F numbers in a chunk, where matrices have C F V.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from based_jax.ops.core.arrays import accumulation_dtype, cast
from based_jax.ops.core.chunks import ChunkMask, chunk_mask, heads_first, scan_chunks
from based_jax.ops.core.op import (
    body,
    expect_chunk_size,
    expect_number,
    expect_scale,
    expect_state,
    stateful_op,
)
from based_jax.ops.core.platforms import platform_of
from based_jax.ops.core.stream import Stream, continue_from, init_stream
from based_jax.ops.feature_maps import (
    IDENTITY,
    FeatureMap,
    expect_feature_map,
    symmetric_taylor_features,
    symmetric_taylor_size,
)
from based_jax.ops.hyper_attention import check_hyper_attention
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import expect, expect_choice

CHUNK = 8
"""Tokens per chunk; each takes m F V floats, or with two ordered slots some C F."""

CHUNK_ON_GPU = 16
"""Those on a GPU: half the launches."""

NORMALIZERS = ("none", "sum")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearHyperState:
    """The sums S_a over the tokens of each row's current segment; float32 (float64 for float64 values)."""

    sums: Float[Array, "B H slots F V"]
    """with one more value, 1 for every key, if the outputs are divided by the sum of the scores"""
    stream: Stream


def init_linear_hyper_state(
    batch_size: int,
    num_heads: int,
    slots: int,
    feature_size: int,
    value_size: int,
    *,
    normalize: str = "none",
    dtype: Any = jnp.float32,
) -> LinearHyperState:
    """Return the state before the first token.

    Args:
        slots: keys of a tuple, the order minus 1.
        feature_size: F of the feature map; K without a map.
        normalize: as for `linear_hyper_attention`.
        dtype: float32, or float64 for a float64 computation.
    """
    columns = value_size + (normalize == "sum")
    sums = jnp.zeros((batch_size, num_heads, slots, feature_size, columns), dtype)
    return LinearHyperState(sums, init_stream(batch_size))


def hyper_taylor_map(order: int) -> FeatureMap:
    """Return phi with sum_f phi(z_1)_f .. phi(z_n)_f = 1 + x + x^2 / 2, x = sum_r z_1r .. z_nr, n = order.

    phi(z) = [1, z, 2^(-1/n) z^2, z_m z_l for l < m], the symmetric form of [1, z, 2^(-1/n) z z^T]. The sum is
    at least 1/2, so a normaliser never vanishes.

    Raises:
        ValueError: an order below 2.
    """
    expect(order >= 2, "order", order, "at least 2")
    return FeatureMap(Partial(_hyper_taylor_features, order), None, symmetric_taylor_size)


def _hyper_taylor_features(order: int, x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    width = x.shape[-1]
    weights = np.ones(symmetric_taylor_size(width))
    weights[1 + width : 1 + 2 * width] = 2 ** (1 / 2 - 1 / order)
    return body(symmetric_taylor_features)(x * width**0.25) * jnp.asarray(weights, x.dtype)


@stateful_op(rows=("q", "ks", "vs", "segment_ids", "mask"))
def linear_hyper_attention(
    q: Float[Array, "B N H K"],
    ks: tuple[Float[Array, "B N H K"], ...],
    vs: tuple[Float[Array, "B N H V"], ...],
    *,
    causal: bool = True,
    ordered: bool = True,
    strict: bool = False,
    feature_map: FeatureMap = IDENTITY,
    normalize: str = "none",
    scale: Scale = 1.0,
    eps: float = 1e-12,
    initial_state: LinearHyperState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LinearHyperState]:
    """Run HyperAttention of order n = len(ks) + 1 without a softmax, in B H N (n - 1) F V multiplications.

    Returns y, (B, N, H, V). Shared arguments, results and errors: `help(based_jax.ops)`. Outputs at masked
    tokens are 0.

    Args:
        q: queries.
        ks, vs: keys and values of the slots j_1, j_2, ...; slots may share an array.
        causal: every j <= i. False takes whole rows: no state and no segments.
        ordered: j_1 >= j_2 >= ...; False takes all tuples.
        strict: j_1 > j_2 > ...; outputs are 0 where there is no such tuple.
        feature_map: map of scaled queries and of keys; `hyper_taylor_map` approximates `hyper_attention`.
        normalize: divide by nothing ("none"), or by the sum of the tuples' scores plus eps ("sum"), which the
            features must keep away from 0.
        scale: factor of the queries before the features.
        eps: added to the sum of the scores.
        initial_state, return_state: need `causal`.
        chunk_size: tokens per chunk; default 8, on a GPU 16.
    """
    check_hyper_attention(q, ks, vs, ordered, strict)
    expect_choice("normalize", normalize, NORMALIZERS)
    scale = expect_scale(scale, 1)
    expect_number("eps", eps)
    chunk_size = expect_chunk_size(chunk_size, CHUNK_ON_GPU if platform_of([q]) == "gpu" else CHUNK)
    batch, length, heads, width = q.shape
    slots, value_size = len(ks), vs[0].shape[-1]
    out_dtype, dtype = vs[0].dtype, accumulation_dtype(vs[0])
    expect_feature_map(feature_map)
    sizes = (batch, heads, slots, feature_map.size(width), value_size)
    state = init_linear_hyper_state(*sizes, normalize=normalize, dtype=dtype)
    expect_state(initial_state, sums=state.sums.shape)
    if not causal:
        for name, value in (("initial_state", initial_state), ("segment_ids", segment_ids)):
            expect(value is None, name, type(value).__name__, "None when causal is False, of whole rows")
        expect(not return_state, "return_state", return_state, "False when causal is False")
    call = continue_from(initial_state, batch, length, segment_ids, mask)
    form = _Form(ordered, strict, feature_map, normalize == "sum")
    q, ks, vs = cast(call.unpadded((q, ks, vs)), dtype)
    q = (q * scale).astype(dtype)

    def scan(sums: Array, q: Array | None, start: Array | None) -> tuple[Any, Array]:
        flat = sums.reshape(*sums.shape[:3], -1)
        step = functools.partial(_chunk, form)
        y, flat = scan_chunks(step, flat, (q, ks, vs), chunk_size=chunk_size, start=start, mask=mask)
        return y, flat.reshape(sums.shape)

    if causal:
        y, sums = scan((initial_state or state).sums.astype(dtype), q, call.start)
        count = call.tokens.positions + 1
    else:
        _, sums = scan(state.sums, None, None)
        total = sums[:, :, 0] if ordered else jnp.prod(sums, axis=2)
        y = jnp.einsum("bnhf,bhfv->bnhv", feature_map.features(q), total)
        count = jnp.full((1, 1), length) if mask is None else mask.sum(axis=1, keepdims=True)

    if normalize == "sum":
        has_tuples = (count >= (slots if ordered and strict else 1))[..., None, None]
        has_tuples = has_tuples if mask is None else has_tuples & mask[..., None, None]
        y = y[..., :-1] / jnp.where(has_tuples, y[..., -1:] + eps, 1)
    if mask is not None:
        y = jnp.where(mask[..., None, None], y, 0)
    y = y.astype(out_dtype)
    return (y, LinearHyperState(sums, call.after)) if return_state else y


class _Form(NamedTuple):
    ordered: bool
    strict: bool
    feature_map: FeatureMap
    with_ones: bool
    """append a value of 1"""


def _chunk(
    form: _Form, sums: Array, chunk: Any, start: Array | None, mask: Array | None
) -> tuple[Any, Array]:
    """Process one chunk from the sums, (B, H, slots, F V); return outputs and the sums after the chunk."""
    q, ks, vs = jax.tree.map(heads_first, chunk)
    size = ks[0].shape[-2]
    visibility = chunk_mask(size, start, mask)
    below = chunk_mask(size, start, mask, diagonal=False) if form.strict else visibility
    q = None if q is None else form.feature_map.features(q)
    ks = [form.feature_map.features(k) for k in ks]
    if form.with_ones:
        vs = [jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1) for v in vs]
    if form.ordered and len(ks) == 2:
        y, sums = _pairs(sums, q, ks, vs, visibility, below)
        return None if y is None else heads_first(y), sums
    new: list[Array] = []
    inside: Any = None
    for slot in reversed(range(len(ks))):
        added = ks[slot][..., :, None] * vs[slot][..., None, :]
        added = added.reshape(*added.shape[:3], -1)
        if form.ordered and inside is not None:
            added = added * inside
        old = sums[:, :, slot : slot + 1]
        new.append(visibility.kept(old) + visibility.entering(added).sum(axis=2, keepdims=True))
        now = _running(below if form.ordered and slot else visibility, old, added)
        inside = now if form.ordered or inside is None else inside * now
    sums = jnp.concatenate(new[::-1], axis=2)
    if q is None:
        return None, sums
    return heads_first(jnp.einsum("bhcf,bhcfv->bhcv", q, inside.reshape(*q.shape, -1))), sums


def _pairs(
    sums: Float[Array, "B H slots FV"],
    q: Float[Array, "B H C F"] | None,
    ks: Sequence[Float[Array, "B H C F"]],
    vs: Sequence[Float[Array, "B H C V"]],
    visibility: ChunkMask,
    below: ChunkMask,
) -> tuple[Any, Array]:
    """Process a chunk for two ordered slots, without a matrix per token; see the module."""
    (k1, k2), (v1, v2) = ks, vs
    matrices = sums.reshape(*sums.shape[:3], k1.shape[-1], v1.shape[-1])
    first, second = matrices[:, :, 0], matrices[:, :, 1]
    earlier, y = below.visible.astype(k1.dtype), None
    if q is not None:
        pairs = q[..., :, None, :] * k1[..., None, :, :]
        scores = jnp.einsum("bhijf,bhlf->bhijl", pairs, k2) * earlier[..., None, :, :]
        held = (pairs @ second[..., None, :, :]).reshape(*q.shape[:3], -1)
        # A query and a key that it sees are in one segment: both read the state, or neither.
        held = visibility.reading(held).reshape(*pairs.shape[:-1], -1) + scores @ v2[..., None, :, :]
        visible = visibility.visible.astype(k1.dtype)[..., None] * v1[..., None, :, :]
        y = visibility.reading(q @ first) + jnp.sum(visible * held, axis=-2)
    entering = visibility.entering(k1)
    written = (below.reading(entering).mT @ v1) * second
    keys = (entering[..., :, None, :] * k2[..., None, :, :]) * earlier[..., None]
    values = v1[..., :, None, :] * v2[..., None, :, :]
    written += jnp.einsum("bhjlf,bhjlv->bhfv", keys, values)
    new = [visibility.kept(first) + written, visibility.kept(second) + visibility.entering(k2).mT @ v2]
    return y, jnp.stack(new, axis=2).reshape(sums.shape)


def _running(visibility: ChunkMask, old: Array, added: Array) -> Array:
    """Return the sum at each token of a chunk, (B, H, C, F V): the old sum plus the terms added so far."""
    return visibility.visible.astype(added.dtype) @ added + visibility.reading(
        jnp.broadcast_to(old, added.shape)
    )
