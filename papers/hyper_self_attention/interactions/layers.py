"""Define linear attention layers of the theory: free weights, no mask, no normalizer.

From Ustaomeroglu & Qu 2025:

    self-attention            y_i = sum_j (x_i^T C x_j) W^T x_j                           section 3
    HyperFeatureAttention     y_i = sum_j (prod_a x_i^T C_a x_j) (prod_a W_a^T x_j)       definition 5.1
    HyperAttention, order 3   y_i = sum_{j <= k} C[x_i, x_j, x_k] W[x_j, x_k]             definition 6.1

Products of values are taken per output; C[x_i, x_j, x_k] is the multilinear form C applied to vectors.
HyperFeatureAttention with one factor is self-attention, and so is HyperAttention of order 2. The layers of
models, causal and with factored weights, are in `based_jax.ops`; their tuples are ordered j >= k.
"""

from string import ascii_lowercase
from typing import Literal

import jax.numpy as jnp
import numpy as np

from based_jax.typing import Array, Bool, Float

Order = Literal["ordered", "strict", "all"]
"""Which tuples of entities HyperAttention sums: j_1 <= j_2 <= ..., j_1 < j_2 < ..., or all."""


def linear_self_attention(
    x: Float[Array, "... L d"], c: Float[Array, "d d"], w: Float[Array, "d d2"]
) -> Float[Array, "... L d2"]:
    """Compute (X C X^T) X W for embedded sequences X, with C = W_Q W_K^T / sqrt(d_k) of a factored layer."""
    x = jnp.asarray(x)
    return _scores(x, c) @ (x @ w)


def linear_hfa(
    x: Float[Array, "... L d"], cs: Float[Array, "A d d"], ws: Float[Array, "A d d2"]
) -> Float[Array, "... L d2"]:
    """Compute HyperFeatureAttention, a head of A factors: scores and values multiply (definition 5.1)."""
    x = jnp.asarray(x)
    x = x[..., None, :, :]
    return jnp.prod(_scores(x, cs), axis=-3) @ jnp.prod(x @ ws, axis=-3)


def hyper_attention(
    x: Float[Array, "... L d"],
    c: Float[Array, " d *keys"],
    w: Float[Array, "*keys d2"],
    order: Order = "ordered",
) -> Float[Array, "... L d2"]:
    """Compute HyperAttention with full tensors: interactions of n entities at a time (definition 6.1).

    Time and memory grow as L^n and d^n, so sizes must be small.

    Args:
        x: embedded sequences.
        c: n axes of width d: the query's, then those of n - 1 keys.
        w: n - 1 axes of width d, then the outputs.
        order: which tuples of keys are summed: "ordered" j_1 <= j_2 <= ..., as in definition 6.1, "strict"
            j_1 < j_2 < ..., "all" every tuple, as in theorem G.4.
    """
    x = jnp.asarray(x)
    keys = c.ndim - 1
    entity, channel = ascii_lowercase[:keys], ascii_lowercase[8 : 8 + keys]
    summed = jnp.asarray(tuples(x.shape[-2], keys, order), x.dtype)
    embedded = ",".join(f"...{j}{z}" for j, z in zip(entity, channel, strict=True))
    scores = jnp.einsum(f"y{channel},...zy,{embedded}->...z{entity}", c, x, *[x] * keys)
    values = jnp.einsum(f"{channel}t,{embedded}->...{entity}t", w, *[x] * keys)
    return jnp.einsum(f"...z{entity},{entity},...{entity}t->...zt", scores, summed, values)


def tuples(length: int, keys: int, order: Order) -> Bool[np.ndarray, " L *L"]:
    """Return which tuples (j_1, ..., j_keys) HyperAttention sums: `keys` axes of size `length`."""
    summed = np.ones((length,) * keys, bool)
    if order == "all":
        return summed
    follows = np.triu(np.ones((length, length), bool), 1 if order == "strict" else 0)
    for axis in range(keys - 1):
        summed &= follows.reshape([length if a in (axis, axis + 1) else 1 for a in range(keys)])
    return summed


def _scores(x: Array, c: Array) -> Array:
    return x @ c @ jnp.matrix_transpose(x)
