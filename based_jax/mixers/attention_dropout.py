"""Softmax attention with dropout of the weights in training, as torch's `dropout_p`.

    y_i = sum_j drop(softmax_j(scale q_i . k_j)) v_j

A weight is zeroed with probability p and otherwise divided by 1 - p, so a row of weights no longer sums to
one. All N^2 weights of a head are in memory at once.
"""

import jax
import jax.numpy as jnp

from based_jax.mixers.contract import Context
from based_jax.ops.attention_to_keys import visible_keys
from based_jax.ops.core.arrays import accumulation_dtype, finfo
from based_jax.typing import Array, Float


def dropped_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    context: Context,
    *,
    left: int | None,
    scale: float | None,
    rate: float,
    key: Array,
) -> Float[Array, "B N H V"]:
    """Attend causally to the tokens of a call without a state, with dropout of the weights.

    Args:
        q, k, v: queries, keys, values; H a multiple of G.
        left: number of past keys that a query sees besides its own; None for all.
        scale: factor of the scores; None for K^(-1/2).
        rate: probability that a weight is dropped.
        key: random key.
    """
    wide = accumulation_dtype(v)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    index, start, mask = context.token_positions
    visible = visible_keys(index, jnp.broadcast_to(start, (start.shape[0], q.shape[1])), index, left)
    visible = (visible if mask is None else visible & mask[:, None, :])[:, None]
    scores = jnp.einsum("bnhk,bmhk->bhnm", q, k, preferred_element_type=wide) * factor
    weights = jax.nn.softmax(jnp.where(visible, scores, finfo(wide).min), axis=-1)
    kept = jax.random.bernoulli(key, 1 - rate, weights.shape)
    weights = jnp.where(kept & visible, weights / (1 - rate or 1.0), 0)
    return jnp.einsum("bhnm,bmhv->bnhv", weights.astype(v.dtype), v, preferred_element_type=wide).astype(
        v.dtype
    )
