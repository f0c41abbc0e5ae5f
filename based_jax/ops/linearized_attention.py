"""Softmax attention to a window, features of older tokens, one normaliser: attention that was linearized.

    y_i = (sum_{i-left <= j <= i} exp(s_ij) v_j + sum_{j < i-left} w_ij v_j) / normaliser
    s_ij = scale q_i.k_j,   w_ij = exp(scale q_i.m + b) phi(A q_i).phi(B (k_j - m))

w estimates exp(s) for the tokens that a window no longer holds, so that softmax attention that was trained in
full keeps most of its outputs and loses its growing cache (LoLCATs, Zhang et al. 2024, 2410.10254,
with learned maps A and B after Hedgehog, 2402.04347). The maps see keys without their mean m, whose part of
a score is exact: Taylor's phi is good near 0. LoLCATs divides the window's weights, but not w, by the largest
one, which depends on keys that phi does not see; here both are merged by the logarithms of their sums.
Tokens are added to the sums of features when they leave the window, so none counts twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import accumulation_dtype, append, finfo, map_arrays
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.kv_cache import KVCache, init_kv_cache, recent
from based_jax.ops.core.op import expect_scale, expect_state, stateful_op
from based_jax.ops.core.stream import Stream, continue_from, outputs_and_state
from based_jax.ops.feature_maps import IDENTITY, TAYLOR, FeatureMap, expect_feature_map
from based_jax.ops.linear_attention import LinearAttentionState, init_linear_attention_state, linear_attention
from based_jax.ops.softmax_attention import checked_sizes, merge_attention, softmax_attention
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import expect_array, expect_integer

SMALLEST_MASS = 1e-30
"""A sum of weights of older tokens below this, before its factor exp(...), counts as zero."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearizedAttentionState:
    """The window, and the sums over older tokens."""

    window: KVCache
    sums: LinearAttentionState
    """its values have one more channel, of ones"""

    @property
    def stream(self) -> Stream:
        """Current position of each row."""
        return self.window.stream


def init_linearized_state(
    batch_size: int,
    left: int,
    heads: int,
    width: int,
    value_size: int,
    features: int,
    dtype: Any = jnp.float32,
    sums_dtype: Any = None,
) -> LinearizedAttentionState:
    """Return the state before the first token; `heads` are those of keys, `dtype` is that of the window.

    `sums_dtype` is float32, or float64 for a float64 computation; None is `dtype`, at least float32.
    """
    wide = jnp.promote_types(dtype, jnp.float32) if sums_dtype is None else sums_dtype
    return LinearizedAttentionState(
        window=init_kv_cache(batch_size, left + 1, heads, width, value_size, dtype),
        sums=init_linear_attention_state(batch_size, heads, features, value_size + 1, wide),
    )


def expect_linearized_state(state: Any, k: Array, v: Array, features: int) -> None:
    """Check a state to continue from with these keys and values, if there is one.

    `softmax_attention` checks the number of keys in the window.
    """
    window, sums = (k.shape[0], "W", *k.shape[2:]), (k.shape[0], k.shape[2], features, v.shape[-1] + 1)
    expect_state(state, **{"window.k": window, "window.v": (*window[:3], v.shape[-1])})
    expect_state(state, **{"sums.kv": sums, "sums.k": sums[:3]})


@stateful_op(rows=("q", "k", "v", "segment_ids", "mask"))
def linearized_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    map_q: Float[Array, "H K M"],
    map_k: Float[Array, "G K M"],
    *,
    left: int,
    mean_key: Float[Array, "G K"] | None = None,
    log_factor: Float[Array, " H"] | None = None,
    feature_map: FeatureMap = TAYLOR,
    scale: Scale | None = None,
    initial_state: LinearizedAttentionState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LinearizedAttentionState]:
    """Attend causally, in time linear in the length; return y, (B, N, H, V).

    Shared arguments, results and errors: `help(based_jax.ops)`; implementation: that of `linear_attention`,
    and of `softmax_attention` unless it is "pallas". `return_state` needs a state.

    Args:
        q, k, v: queries, keys, values; H a multiple of G (grouped-query attention).
        map_q, map_k: A and B, for each head of queries and of keys.
        left: past keys in the window, besides the query's own.
        mean_key: m, what keys have in common; None for zeros.
        log_factor: b, the logarithm of a factor of the weights of older tokens; None for zeros.
        feature_map: phi, of M channels; its products must be positive.
        scale: factor of the scores; None is K^(-1/2).
    """
    _, _, groups, width, _ = checked_sizes(q, k, v)
    heads = q.shape[2]
    expect_array("map_q", map_q, (heads, width, "M"), "floating")
    expect_array("map_k", map_k, (groups, width, map_q.shape[-1]), "floating")
    if mean_key is not None:
        expect_array("mean_key", mean_key, (groups, width), "floating")
    if log_factor is not None:
        expect_array("log_factor", log_factor, (heads,), "floating")
    expect_integer("left", left, 0)
    expect_feature_map(feature_map)
    factor = expect_scale(scale, width)
    expect_linearized_state(initial_state, k, v, feature_map.size(map_q.shape[-1]))

    def mapped(q: Array, k: Array) -> tuple[Array, Array, Array]:
        log_weight = jnp.zeros(q.shape[:3], q.dtype)
        if log_factor is not None:
            log_weight += log_factor.astype(q.dtype)
        if mean_key is not None:
            mean = mean_key.astype(q.dtype)
            log_weight += factor * jnp.einsum("bnhk,hk->bnh", q, jnp.repeat(mean, heads // groups, axis=0))
            k = k - mean
        q = jnp.einsum("bnhk,hkm->bnhm", q, map_q.astype(q.dtype))
        return q, jnp.einsum("bngk,gkm->bngm", k, map_k.astype(q.dtype)), log_weight

    how: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "implementation": implementation}
    how |= {"left": left, "scale": factor, "initial_state": initial_state, "return_state": return_state}
    return attend_in_two_parts(q, k, v, mapped, feature_map, **how)


def attend_in_two_parts(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    mapped: Callable[[Array, Array], tuple[Array, Array, Array]],
    feature_map: FeatureMap = IDENTITY,
    *,
    left: int,
    scale: Scale | None,
    initial_state: LinearizedAttentionState | None,
    return_state: bool,
    segment_ids: Int[Array, "B N"] | None,
    mask: Bool[Array, "B N"] | None,
    implementation: str | None,
) -> Any:
    """Attend with a softmax to the window and by features to older tokens; the body of ops.

    `mapped` takes q and k in the accumulation's dtype and returns what `feature_map` is applied to, (B, N, H,
    M) and (B, N, G, M), and the logarithms of the weights' factors, (B, N, H).
    """
    choose("linear_attention", implementation=implementation)  # softmax_attention has others
    batch, length, heads, _ = q.shape
    groups = k.shape[2]
    window, sums = (None, None) if initial_state is None else (initial_state.window, initial_state.sums)
    how: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "return_state": return_state}
    in_window: dict[str, Any] = {"left": left, "scale": scale, "initial_state": window}
    in_window |= {"implementation": None if implementation == "pallas" else implementation}
    results = softmax_attention(q, k, v, return_log_sum=True, **in_window, **how)
    near, written = outputs_and_state(results, return_state)

    # For each token, the one that has just left its window, if it is in the same segment.
    call = continue_from(initial_state, batch, length, segment_ids, mask)
    q, k, v = call.unpadded((q, k, v))
    if window is None:
        before = tuple(jnp.zeros((batch, left + 1, *x.shape[2:]), x.dtype) for x in (k, v))
    else:
        before = recent(window, left + 1)[:2]
    dtype = accumulation_dtype(v)
    has_left = (call.tokens.positions > left)[..., None, None]
    k, values = (jnp.where(has_left, x[:, :length], 0).astype(dtype) for x in append(before, (k, v)))
    ones = jnp.broadcast_to(has_left.astype(dtype), (*values.shape[:-1], 1))
    values = jnp.concatenate([values, ones], axis=-1)
    q, k, log_weight = mapped(q.astype(dtype), k)
    how |= {"feature_map": feature_map, "normalize": False, "initial_state": sums}
    how |= {"implementation": implementation}

    def run(q: Array) -> tuple[Array, Any]:
        return outputs_and_state(linear_attention(q, k, values, **how), return_state)

    if heads == groups:
        far, sums = run(q)
    else:  # one query of each group at a time: a group shares keys, values and their sums
        in_groups = q.reshape(batch, length, groups, heads // groups, q.shape[-1])
        far, sums = jax.vmap(run, in_axes=3, out_axes=(3, 0))(in_groups)
        sums = map_arrays(lambda x: x[0], sums)  # of keys alone: the same for each query
        far = far.reshape(batch, length, heads, far.shape[-1])
    mass = far[..., -1]
    exists = mass > SMALLEST_MASS
    mass = jnp.where(exists, mass, 1)
    # Divided by a constant first, for the gradient of far / mass has a factor of 1 / mass^2, which overflows.
    constant = lax.stop_gradient(mass)
    far, mass = far / constant[..., None], mass / constant
    log_sum = jnp.log(mass) + jnp.log(constant) + log_weight
    log_sum = jnp.where(exists, log_sum, finfo(dtype).min)
    y = merge_attention(near, ((far[..., :-1] / mass[..., None]).astype(v.dtype), log_sum))
    if not return_state:
        return y
    # The op's own sums of keys count zeros in place of the tokens that are still in the window.
    return y, LinearizedAttentionState(written, replace(sums, k=sums.kv[..., -1]))
