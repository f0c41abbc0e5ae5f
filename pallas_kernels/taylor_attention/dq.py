"""Backward pass 3a: gradients of the queries, a forward walk with the same states as the outputs.

    dn = do / den,  dx = causal (dn v^T + dd) (1 + x),  dq = dx k + phi'(q) (dn S^T) + dd (first + second q)

Features, scores and the states inside a block are computed again rather than kept.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.blocks import (
    Chunk,
    Features,
    Plan,
    State,
    add_tokens,
    empty_state,
    load_state,
    only_if,
    tile_gradient,
)
from pallas_kernels.taylor_attention.outputs import scaled_scores, visibility
from pallas_kernels.taylor_attention.sums import output_gradients


def query_gradients(
    plan: Plan, tables: Any, q: jax.Array, k: jax.Array, v: jax.Array,
    do: jax.Array, rden: jax.Array, dd: jax.Array,
    prefix: tuple[jax.Array, jax.Array] | None, packing: Sequence[jax.Array],
) -> jax.Array:  # fmt: skip
    """dq (B, N, H, K) in q's dtype.

    Args:
        tables: of `specs.constant_tables`.
        q, k, v: inputs of the forward pass.
        do: (B, N, H, V) gradient of the outputs.
        rden, dd: (B, H, N) reciprocal normalisers and the normalisers' gradients.
        prefix, packing: as in `outputs`.
    """

    def body(q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, rden_ref: Any, dd_ref: Any, *refs: Any) -> None:
        packing, prefix_refs, query_features, key_features, (dq_ref,) = specs.unpack(
            plan, refs, prefix is not None
        )
        tile = specs.value_tile(plan)
        start = specs.block_start(plan)
        share = share_of_normaliser(plan, tile)

        def step(c: Any, state: State) -> State:
            chunk = Chunk(plan, start + c * plan.chunk, packing)
            x = chunk.queries(q_ref)
            dn = output_gradients(chunk, do_ref, rden_ref, tile)
            dd = chunk.numbers(dd_ref) * share
            visible, sees_state = visibility(chunk, packing)
            dx = _behind_state(plan, query_features.at(c), state, x, dn, dd)
            if sees_state is not None:
                dx = jnp.where(sees_state[:, None], dx, 0.0)
            # Loaded only now: registers are what this kernel has too few of.
            k, v = chunk.keys(k_ref), chunk.values(v_ref, tile)
            scores = scaled_scores(plan, x, k)
            dscores = plan.dot(dn, v, (1, 1)) + dd[:, None]
            dscores = jnp.where(visible, dscores * slope(plan, scores), 0.0)
            dx = plan.dot(dscores, k, (1, 0), dx)
            chunk.put_keys(dq_ref, dx * plan.scales[0])
            stays, k, v, count = chunk.entering(k, v)
            return add_tokens(plan, key_features.at(c), only_if(stays, state), k, v, None, count)

        state = empty_state(plan) if prefix_refs is None else load_state(plan, *prefix_refs, tile)
        lax.fori_loop(0, plan.block // plan.chunk, step, state)

    keys, values, numbers = specs.keys(plan), specs.values(plan), specs.numbers(plan)
    shares = specs.run(
        plan, body, "dq", blocks=plan.blocks,
        operands=[q, k, v, do, rden, dd], in_specs=[keys, keys, values, values, numbers, numbers],
        packing=packing, states=prefix, tables=tables, out_specs=specs.key_gradients(plan),
        out_shape=jax.ShapeDtypeStruct((plan.value_tiles, *q.shape), share_dtype(plan, q)),
    )  # fmt: skip
    return sum_of_shares(shares, q)


def share_of_normaliser(plan: Plan, tile: Any) -> Any:
    """1 for the first value tile, 0 for the others: the normaliser is one for all, and counts once.

    A factor made before the loop takes a register less than a condition inside it.
    """
    return (tile == 0).astype(jnp.float32) if plan.value_tiles > 1 else 1.0


def slope(plan: Plan, scores: jax.Array) -> jax.Array:
    """(C, C) derivative of 1 + s + s^2 / 2 by the products that `scaled_scores` scales."""
    return (1 + scores) if plan.scales[1] == 1 else (1 + scores) * plan.scales[1]


def share_dtype(plan: Plan, like: jax.Array) -> Any:
    """Shares of several value tiles are added in float32."""
    return like.dtype if plan.value_tiles == 1 else jnp.float32


def sum_of_shares(shares: jax.Array, like: jax.Array) -> jax.Array:
    """Gradient from its share per value tile."""
    return shares[0] if shares.shape[0] == 1 else shares.sum(axis=0).astype(like.dtype)


def _behind_state(
    plan: Plan, features: Features, state: State, x: jax.Array, dn: jax.Array, dd: jax.Array
) -> jax.Array:
    """(C, K) gradient of the queries through what they read from the state."""
    dx: Any = None
    for tile in reversed(range(len(state.tiles))):
        factors = features.factors(x, tile)
        if dx is None:
            dx = features.normaliser_gradient(state, features.product(factors, tile)) * dd[:, None]
        dx = features.gradient(factors, tile, tile_gradient(plan, state, tile, dn), dx)
    return dx
