"""Softmax attention whose weights are dropped in training, as torch's `dropout_p` does.

    y_i = sum_j drop(softmax_j(scale q_i . k_j)) v_j

A weight is zero with the given probability and otherwise divided by one minus it; the rows of weights no
longer add up to one. All N^2 weights of a head are held at once.
"""

import jax
import jax.numpy as jnp

from based_jax.mixers.context import Context
from based_jax.ops.core.dtypes import accumulation_dtype, finfo
from based_jax.ops.softmax_attention import visible_keys
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
    """Attend causally to the tokens of a call without a state, and drop weights.

    Args:
        q, k, v: queries, keys, values; H a multiple of G.
        left: number of past keys that a query sees beside its own; None is all of them.
        scale: factor of the scores; None is K^(-1/2).
        rate: probability that a weight is dropped.
        key: of the random numbers.
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
