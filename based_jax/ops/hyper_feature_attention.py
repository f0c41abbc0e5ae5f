"""HyperFeatureAttention: scores are products of the scores of A features (Ustaomeroglu and Qu, section 5).

    s_ij = prod_a c q^a_i . k^a_j
    softmax (Definition F.3):   y_i = sum_j softmax_j(s_ij) v_j
    linear (Definition 5.1):    y_i = sum_j s_ij v_j

over the keys j visible to i. A = 1 is ordinary attention. If values are multiplied, as in the paper, v is
their product.

The softmax form processes blocks of queries, so no (N, N) array is stored for any A; its cache concatenates
the factors of a key and is as large as ordinary attention's. The causal linear form is linear attention over
tensor (Kronecker) products of the factors, an exact identity that is not in the paper: a state of
prod_a d_a x V floats, and time linear in the length.

    prod_a q^a . k^a  =  (q^1 x ... x q^A) . (k^1 x ... x k^A)
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import accumulation_dtype, finfo
from based_jax.ops.core.chunks import map_chunks
from based_jax.ops.core.kv_cache import KVCache, expect_cache, nan_where_outgrown, slot_index, write
from based_jax.ops.core.op import body, expect_chunk_size, expect_scale, stateful_op
from based_jax.ops.core.stream import continue_from
from based_jax.ops.feature_maps import FeatureMap, size_for
from based_jax.ops.linear_attention import LinearAttentionState, linear_attention
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import expect, expect_array, expect_choice

KINDS = {"softmax": KVCache, "linear": LinearAttentionState}
"""The forms and their states"""

QUERY_BLOCK = 512
"""Queries per block, times A: a backward pass holds a block's scores of all A factors."""

CHUNK = 64
"""Tokens per chunk of the linear form. Scores inside a chunk are products of features, with prod_a d_a
multiplications each instead of sum_a d_a for multiplying the factors' scores. For d = (16, 16) and V = 64
the matrix products of a forward pass take 1.4 times the operations (1.6 with 128 tokens, 1.2 with 32), but
`linear_attention` can be reused with its segments, states, normaliser and sharded sequences."""


State = KVCache | LinearAttentionState


@stateful_op(tokens=("qs", "ks", "v", "segment_ids", "mask"))
def hyper_feature_attention(
    qs: Sequence[Float[Array, "B N H _"]],
    ks: Sequence[Float[Array, "B N H _"]],
    v: Float[Array, "B N H V"],
    causal: bool = True,
    kind: str = "softmax",
    *,
    scale: Scale = 1.0,
    normalize: bool = False,
    initial_state: State | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], State]:
    """Attend with products of scores; return y, (B, N, H, V), finite but meaningless at masked tokens.

    In the softmax form, all outputs of a row that exceeds its cache's capacity are NaN: under `jit` no error
    can be raised. Shared arguments, results and errors: `help(based_jax.ops)`.

    Args:
        qs, ks: the A factors of queries and keys, (B, N, H, d_a); d_a may differ between factors.
        v: values.
        causal: key j is visible to query i only if j <= i. If False, the linear form takes quadratic time.
        kind: "softmax", or "linear" (no normaliser; the weights of invisible keys are 0).
        scale: factor c of each factor's scores; the paper has none.
        normalize: divide the linear form by the sum of its scores, plus 1e-12. Use only if no score is
            negative. Needs `causal`.
        initial_state: continue from here. "softmax": a cache (`init_kv_cache`, its key size sum_a d_a) with
            slots for the whole text. "linear": `init_linear_attention_state` with prod_a d_a features. Needs
            `causal`.
        return_state: "softmax" needs `initial_state`.
        chunk_size: queries per block, default 512 / A; in the causal linear form tokens per chunk, default
            64. The result does not depend on it.

    Raises:
        ValueError: a text longer than the cache, if lengths are known.
    """
    qs, ks = tuple(qs), tuple(ks)
    _check(qs, ks, v, kind)
    scale = expect_scale(scale, 1)
    is_linear = causal and kind == "linear"
    expect(not normalize or is_linear, "normalize", normalize, "False unless causal, with kind = 'linear'")
    expect(not return_state or causal, "return_state", return_state, "False when causal is False")
    state: Any = initial_state
    if state is not None:
        expect(causal, "causal", causal, "True with an initial_state")
        expected = f"a {KINDS[kind].__name__} with kind = {kind!r}"
        expect(isinstance(state, KINDS[kind]), "initial_state", type(state).__name__, expected)
    if kind == "softmax":
        sizes = (*v.shape[:3], sum(k.shape[-1] for k in ks), v.shape[-1])
        expect_cache(state, sizes, causal=causal, left=None, return_state=return_state, mask=mask)
    if kind == "linear":
        dtype = accumulation_dtype(v)
        qs, ks = (tuple(x.astype(dtype) for x in factors) for factors in (qs, ks))
    if kind == "linear" and causal:
        q = jnp.concatenate([scale ** len(qs) * qs[0], *qs[1:]], axis=-1)
        k, phi = jnp.concatenate(ks, axis=-1), tensor_product_map([q.shape[-1] for q in qs])
        linear: dict[str, Any] = {"initial_state": state, "chunk_size": expect_chunk_size(chunk_size, CHUNK)}
        linear |= {"segment_ids": segment_ids, "mask": mask}
        return body(linear_attention)(
            q, k, v, feature_map=phi, normalize=normalize, return_state=return_state, **linear
        )
    block = expect_chunk_size(chunk_size, max(QUERY_BLOCK // len(qs), 1))
    y, written = _in_blocks(qs, ks, v, causal, kind, scale, state, block, segment_ids, mask)
    return y if written is None or not return_state else (y, written)


def tensor_product_map(widths: Sequence[int]) -> FeatureMap:
    """Return all products of one channel of each factor as a map, for factors concatenated in the channels.

    widths: d_a of each factor. The map takes (..., sum_a d_a) to (..., prod_a d_a), the last factor's channel
    running fastest.
    """
    size = Partial(size_for, sum(widths), math.prod(widths))
    return FeatureMap(Partial(_all_products, tuple(widths)), similarity=None, size=size)


def _all_products(widths: tuple[int, ...], x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    product, *others = _factors_in(x, widths)
    for factor in others:
        pairs = product[..., :, None] * factor[..., None, :]
        product = pairs.reshape(*pairs.shape[:-2], -1)
    return product


def _factors_in(x: Float[Array, "... K"], widths: Sequence[int]) -> list[Float[Array, "... _"]]:
    """Split x into the factors that are concatenated in its channels."""
    return jnp.split(x, list(accumulate(widths))[:-1], axis=-1)


def _check(qs: Sequence[Array], ks: Sequence[Array], v: Array, kind: str) -> None:
    expect_choice("kind", kind, tuple(KINDS))
    expect(len(qs) >= 1, "factors in qs", len(qs), "at least 1")
    expect(len(ks) == len(qs), "factors in ks", len(ks), f"as many as in qs, {len(qs)}")
    expect_array("v", v, ("B", "N", "H", "V"), "floating")
    for number, (q, k) in enumerate(zip(qs, ks, strict=True)):
        expect_array(f"qs[{number}]", q, (*v.shape[:3], "d_a"), "floating")
        expect_array(f"ks[{number}]", k, q.shape, "floating")


def _in_blocks(
    qs: Sequence[Array],
    ks: Sequence[Array],
    v: Array,
    causal: bool,
    kind: str,
    scale: Scale,
    cache: KVCache | None,
    block: int,
    segment_ids: Int[Array, "B N"] | None,
    mask: Bool[Array, "B N"] | None,
) -> tuple[Array, KVCache | None]:
    """Attend to all keys, one block of queries at a time; the backward pass recomputes a block's scores."""
    batch, length = v.shape[:2]
    call = continue_from(cache, batch, length, segment_ids, mask)
    qs, ks, v = call.unpadded((qs, ks, v))
    index, start = (jnp.broadcast_to(x, (batch, length)) for x in (call.tokens.index, call.tokens.start))
    # A query sees the keys whose marks are between its `first` and `last`.
    first, last = (start, index) if causal else (start, start)
    marks = last if mask is None else jnp.where(mask, last, -1)
    values, written = v, None
    if cache is not None:
        written = write(cache, jnp.concatenate(ks, axis=-1), v, call.tokens, call.after)
        ks = _factors_in(written.k, [k.shape[-1] for k in ks])
        values, marks = written.v, slot_index(call.after.length, cache.slots)
    ks, values, marks = sharding.whole((tuple(ks), values, marks))

    def attend(chunk: Any, ks: Any, values: Array) -> Array:
        qs, first, last = chunk
        visible = (first[:, :, None] <= marks[:, None]) & (marks[:, None] <= last[:, :, None])
        return _attend(qs, ks, values, visible, kind, scale)

    y = map_chunks(attend, (qs, first, last), block, ks, values)
    y = y.astype(v.dtype)  # the cache's values may have another dtype
    return (y if written is None else nan_where_outgrown(written, y)), written


def _attend(
    qs: Sequence[Array], ks: Sequence[Array], v: Array, visible: Array, kind: str, scale: Scale
) -> Float[Array, "B C H V"]:
    """Attend with one block. qs: (B, C, H, d_a); ks, v: (B, M, H, dim); visible: (B, C, M)."""
    dtype = accumulation_dtype(v)
    product = jnp.ones((), dtype)
    for q, k in zip(qs, ks, strict=True):
        scores = jnp.einsum("bnhk,bmhk->bhnm", q, k.astype(q.dtype), preferred_element_type=dtype)
        product = product * (scores * scale)
    visible = visible[:, None]
    # Mask only the product: two factors of -inf would multiply to +inf.
    if kind == "softmax":
        weights = jax.nn.softmax(jnp.where(visible, product, finfo(dtype).min), axis=-1).astype(v.dtype)
    else:
        weights = jnp.where(visible, product, 0)
    return jnp.einsum("bhnm,bmhv->bnhv", weights, v, preferred_element_type=dtype).astype(v.dtype)
