"""Backward pass 3a: gradients of the queries, a forward scan with the same states as the outputs.

    dn = do / den,  dx = causal (dn v^T + dd) (1 + x),  dq = dx k + phi'(q) (dn S^T) + dd (first + second q)

Features, scores and the states inside a block are recomputed.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.blocks import Features, Plan, State, add_tokens, tile_gradient
from pallas_kernels.taylor_attention.outputs import scaled_scores, visibility
from pallas_kernels.taylor_attention.sums import output_gradients

AXES = ("bnhk", "bnhk", "bnhv", "bnhv", "bhn", "bhn")
"""Axes of the arrays q, k, v, do (gradient of the outputs), rden (reciprocal normalisers) and dd (gradients
of the normalisers)."""


def query_gradients(
    plan: Plan, tables: Any, arrays: Sequence[jax.Array], packing: Sequence[jax.Array], prefix: Any
) -> jax.Array:
    """Return dq (B, N, H, K) in q's dtype, from arrays with the `AXES`; other arguments as for `outputs`."""

    def body(q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, rden_ref: Any, dd_ref: Any, *refs: Any) -> None:
        here = specs.running(plan, refs, prefix is not None)
        share = share_of_normaliser(plan, here.tile)

        def step(c: Any, state: State) -> State:
            chunk = here.chunk(c)
            x = chunk.queries(q_ref)
            dn = output_gradients(chunk, do_ref, rden_ref, here.tile)
            dd = chunk.numbers(dd_ref) * share
            visible, sees_state = visibility(chunk, here.packing)
            dx = gradient_through_state(plan, here.query_features.at(c), state, x, dn, dd)
            if sees_state is not None:
                dx = jnp.where(sees_state[:, None], dx, 0.0)
            # Load as late as possible: this kernel is short of registers.
            k, v = chunk.keys(k_ref), chunk.values(v_ref, here.tile)
            scores = scaled_scores(plan, x, k)
            dscores = plan.dot(dn, v, (1, 1)) + dd[:, None]
            dscores = jnp.where(visible, dscores * slope(plan, scores), 0.0)
            dx = plan.dot(dscores, k, (1, 0), dx)
            chunk.put_keys(here.outputs[0], dx * plan.scales[0])
            stays, k, v, count = chunk.entering(k, v)
            return add_tokens(plan, here.key_features.at(c), state, stays, k, v, None, count)

        here.walk(step)

    results = [("tbnhk", share_dtype(plan, arrays[0]))]
    (shares,) = specs.run(plan, body, "dq", arrays, AXES, packing, tables, results, states=prefix)
    return sum_of_shares(shares, arrays[0])


def share_of_normaliser(plan: Plan, tile: Any) -> Any:
    """Return 1 for the first value tile, else 0: all tiles share the normaliser, which counts once.

    A factor computed before the loop takes one register less than a condition inside it.
    """
    return (tile == 0).astype(jnp.float32) if plan.value_tiles > 1 else 1.0


def slope(plan: Plan, scores: jax.Array) -> jax.Array:
    """Return (C, C) derivative of 1 + s + s^2 / 2 by the products that `scaled_scores` scales."""
    return (1 + scores) if plan.scales[1] == 1 else (1 + scores) * plan.scales[1]


def share_dtype(plan: Plan, like: jax.Array) -> Any:
    """Return the dtype of a gradient's shares: float32 if several value tiles are added."""
    return like.dtype if plan.value_tiles == 1 else jnp.float32


def sum_of_shares(shares: jax.Array, like: jax.Array) -> jax.Array:
    """Return a gradient from its share per value tile."""
    return shares[0] if shares.shape[0] == 1 else shares.sum(axis=0).astype(like.dtype)


def gradient_through_state(
    plan: Plan, features: Features, state: State, x: jax.Array, u: jax.Array, weight: Any
) -> jax.Array:
    """Return (C, K) gradient of x through u . (phi(x) S) and `weight`, one or (C,), times the normaliser."""
    dx: Any = None
    for tile in reversed(range(len(state.tiles))):
        factors = features.factors(x, tile)
        if dx is None:
            dx = features.normaliser_gradient(state, features.product(factors, tile))
            dx = dx * (weight[:, None] if jnp.ndim(weight) else weight)
        dx = features.gradient(factors, tile, tile_gradient(plan, state, tile, u), dx)
    return dx
