"""ScatterBrain: softmax attention in a window and random features for older tokens (Chen et al. 2021).

    y_i = (sum_{i-left <= j <= i} exp(s_ij) v_j + sum_{j < i-left} phi(q_i).phi(k_j) v_j) / normaliser

s_ij = q_i.k_j / sqrt(K); phi(q).phi(k) estimates exp(s) without bias by FAVOR+'s F positive features
exp(+-w.x - |x|^2 / 2) / sqrt(F), x = q or k over K^(1/4), with F / 2 random directions w (Performer,
Choromanski et al. 2021). Tokens are added to the sum of features when they leave the window, so none counts
twice.

Zoology's code instead adds two attentions that are normalised separately, and subtracts the window from the
second one, with its similarities times K^(-1/2):

    y_i = sum_window softmax(s_ij) v_j + (sum_{j<=i} a_ij v_j) / max(sum_{j<=i} a_ij, 1e-24)
    a_ij = phi(q_i).phi(k_j) (1 - K^(-1/2) [j in the window])

Its features are scaled by the largest feature of all keys of the row, later ones included, then offset by a
small eps: that form is not causal.
"""

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.ops.core.op import body, expect_number, expect_qkv, op, stateful_op
from based_jax.ops.feature_maps import orthogonal_features
from based_jax.ops.linearized_attention import (
    LinearizedAttentionState,
    attend_in_two_parts,
    expect_linearized_state,
)
from based_jax.ops.softmax_attention import softmax_attention
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array, expect_integer


@op()
def gaussian_features(key: Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> Float[Array, "R K"]:
    """Draw FAVOR+'s random directions: orthogonal in blocks of K, with the lengths of Gaussian vectors.

    Args:
        key: `jax.random.key(seed)`.
        shape: (R, K), number of directions and width of queries and keys.
        dtype: of the result, floating.
    """

    def norm(x: Array) -> Array:
        return cast(Array, jnp.linalg.norm(x, axis=-1, keepdims=True))

    directions, lengths = jax.random.split(key)
    lengths = norm(jax.random.normal(lengths, shape, dtype))
    rows = body(orthogonal_features)(directions, shape, dtype)
    return rows / norm(rows) * lengths


@stateful_op(rows=("q", "k", "v", "segment_ids", "mask"))
def scatterbrain_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    directions: Float[Array, "R K"],
    *,
    left: int,
    initial_state: LinearizedAttentionState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LinearizedAttentionState]:
    """Attend causally, in time linear in the length; return y, (B, N, H, V).

    Shared arguments, results and errors: `help(based_jax.ops)`; implementation: see `softmax_attention` and
    `linear_attention`. `return_state` needs a state.

    Args:
        q, k, v: queries, keys, values.
        directions: R = F / 2 random directions, see `gaussian_features`.
        left: past keys in the window, besides the query's own.
    """
    _check(q, k, v, directions, left)
    expect_linearized_state(initial_state, k, v, 2 * len(directions))

    def mapped(q: Array, k: Array) -> tuple[Array, Array, Array]:
        # exp(w.x - |x|^2 / 2) is at most exp(|w|^2 / 2). With that factor moved to the query's side, a key's
        # features are at most 1, whatever the other keys are.
        of_q, of_k = (_exponents(x, directions.astype(x.dtype)) for x in (q, k))
        reach = jnp.sum(jnp.square(directions.astype(q.dtype)), axis=-1) / 2
        reach = jnp.concatenate([reach, reach])
        of_q = of_q + reach
        largest = lax.stop_gradient(of_q.max(axis=-1, keepdims=True))
        log_weight = largest[..., 0] - math.log(of_q.shape[-1])
        return jnp.exp(of_q - largest), jnp.exp(of_k - reach), log_weight

    how: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "implementation": implementation}
    how |= {"left": left, "scale": None, "initial_state": initial_state, "return_state": return_state}
    return attend_in_two_parts(q, k, v, mapped, **how)


@op()
def zoology_scatterbrain(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    directions: Float[Array, "R K"],
    *,
    left: int,
    eps: float = 1e-4,
) -> Float[Array, "B N H V"]:
    """Compute Zoology's form, quadratic and NOT causal: the largest key scales every output.

    Args:
        q, k, v: queries, keys, values of whole rows.
        directions, left: as for `scatterbrain_attention`.
        eps: added to every feature, after division by sqrt(F).

    Returns:
        y: (B, N, H, V) in the dtype of v.
    """
    length = _check(q, k, v, directions, left)
    expect_number("eps", eps)
    dtype = accumulation_dtype(v)
    near = softmax_attention(q, k, v, left=left).astype(dtype)
    q, k, values, directions = (x.astype(dtype) for x in (q, k, v, directions))
    of_q, of_k = _exponents(q, directions), _exponents(k, directions)
    offset = eps * of_q.shape[-1] ** -0.5
    phi_q = jnp.exp(of_q - of_q.max(axis=-1, keepdims=True)) + offset
    of_k = of_k - math.log(of_k.shape[-1]) / 2
    phi_k = jnp.exp(of_k - of_k.max(axis=(1, 3), keepdims=True)) + offset
    back = jnp.arange(length)[:, None] - jnp.arange(length)
    share = jnp.where(back <= left, 1 - q.shape[-1] ** -0.5, 1) * (back >= 0)
    weights = jnp.einsum("bihf,bjhf->bhij", phi_q, phi_k) * share
    weights = weights / jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-24)
    return (near + jnp.einsum("bhij,bjhv->bihv", weights, values)).astype(v.dtype)


def _check(q: Array, k: Array, v: Array, directions: Array, left: int) -> int:
    _, length, _, width, _ = expect_qkv(q, k, v)
    expect_array("directions", directions, ("R", width), "floating")
    expect_integer("left", left, 0)
    return length


def _exponents(x: Float[Array, "B N H K"], directions: Float[Array, "R K"]) -> Float[Array, "B N H F"]:
    """Return +-w.x - |x|^2 / 2 of x over K^(1/4)."""
    x = x * x.shape[-1] ** -0.25
    along = x @ directions.T
    return jnp.concatenate([along, -along], axis=-1) - jnp.sum(x * x, axis=-1, keepdims=True) / 2
