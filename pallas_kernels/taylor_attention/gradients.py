"""Backward pass 3: gradients. Features, scores and the states inside a block are recomputed.

Queries, a forward scan with the same states as the outputs:

    dn = do / den,  dx = causal (dn v^T + dd) (1 + x),  dq = dx k + phi'(q) (dn S^T) + dd (first + second q)

Keys and values, a reverse scan with the sums over later queries, T = sum phi(q) dn^T and the moments of q
weighted by dd, with scores keys by queries, so that no matrix is transposed in registers:

    dv = p^T dn + phi(k) T,   dk = dx^T q + phi'(k) (v T^T) + first + second k
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention import blocks, specs
from pallas_kernels.taylor_attention.blocks import Chunk, Features, Packing, Plan, State
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
            return blocks.add_tokens(plan, here.key_features.at(c), state, stays, k, v, None, count)

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
        dx = features.gradient(factors, tile, blocks.tile_gradient(plan, state, tile, u), dx)
    return dx


def key_or_value_gradient(
    plan: Plan,
    tables: Any,
    arrays: Sequence[jax.Array],
    packing: Sequence[jax.Array],
    suffix: tuple[jax.Array, ...] | None,
    wanted: str,
) -> jax.Array:
    """Return dk (B, N, H, K) or dv (B, N, H, V), in the input's dtype.

    One scan for both would need too many registers.

    Args:
        tables, arrays, packing: as in `query_gradients`.
        suffix: (B, H, blocks, size, V) and (B, H, blocks, K + 1, last), the sums after each block; None for
            zeros.
        wanted: "dk" or "dv".
    """

    def body(q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, rden_ref: Any, dd_ref: Any, *refs: Any) -> None:
        here, steps = specs.running(plan, refs, suffix is not None), plan.block // plan.chunk
        share = share_of_normaliser(plan, here.tile)

        def step(i: Any, state: State) -> State:
            gradient: Any = None
            chunk = here.chunk(steps - 1 - i)
            k = chunk.keys(k_ref)
            # Load late, and twice unless from shared memory (`stages`): this kernel is short of registers.
            v = chunk.values(v_ref, here.tile) if wanted == "dk" else None
            if v is None:
                features = here.key_features.at(i)
                for tile in reversed(range(len(state.tiles))):
                    phi = features.by_token(k, tile)
                    gradient = blocks.read_tile(plan, state, tile, phi, gradient)
            else:
                gradient = gradient_through_state(plan, here.key_features.at(i), state, k, v, share)
            dn, x = output_gradients(chunk, do_ref, rden_ref, here.tile), chunk.queries(q_ref)
            dd = None if v is None else chunk.numbers(dd_ref) * share
            visible, sees = _visibility(chunk, here.packing)
            gradient = gradient if sees is None else jnp.where(sees[:, None], gradient, 0.0)
            scores = scaled_scores(plan, k, x)
            if v is None or dd is None:
                p = jnp.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
                chunk.put_values(here.outputs[0], plan.dot(p, dn, (1, 0), gradient), here.tile)
            else:
                dscores = plan.dot(v, dn, (1, 1)) + dd[None, :]
                dscores = jnp.where(visible, dscores * slope(plan, scores), 0.0)
                chunk.put_keys(here.outputs[0], plan.dot(dscores, x, (1, 0), gradient))
            if plan.stages == 1:
                x, dn = chunk.queries(q_ref), output_gradients(chunk, do_ref, rden_ref, here.tile)
            stays, dn, dd = chunk.leaving(dn, chunk.numbers(dd_ref))
            return blocks.add_tokens(plan, here.query_features.at(i), state, stays, x, dn, dd, 0.0)

        here.walk(step)

    _, k, v, *_ = arrays
    results = [("bnhv", v.dtype)] if wanted == "dv" else [("tbnhk", share_dtype(plan, k))]
    (result,) = specs.run(plan, body, wanted, arrays, AXES, packing, tables, results, states=suffix)
    return result if wanted == "dv" else sum_of_shares(result, k)


def _visibility(chunk: Chunk, packing: Packing | None) -> tuple[jax.Array, Any]:
    """Return `outputs.visibility` with keys along the rows, and which keys are visible after the chunk."""
    token = jnp.arange(chunk.plan.chunk)
    visible = token[:, None] <= token[None, :]
    if packing is None:
        return visible, None
    sees = chunk.index >= chunk.next_start
    return visible & (chunk.index[:, None] >= chunk.starts()[None, :]), sees
