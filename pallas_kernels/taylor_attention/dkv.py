"""Backward pass 3b: gradients of keys and values, a walk from the end with the sums over later queries.

    T = sum phi(q) dn^T, and the moments of q weighted by dd
    dv = p^T dn + phi(k) T,   dk = dx^T q + phi'(k) (v T^T) + first + second k

Scores are built transposed, keys by queries, so that no matrix is turned in registers.
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
    Packing,
    Plan,
    State,
    add_tokens,
    empty_state,
    load_state,
    only_if,
    read_tile,
    tile_gradient,
)
from pallas_kernels.taylor_attention.dq import share_dtype, share_of_normaliser, slope, sum_of_shares
from pallas_kernels.taylor_attention.outputs import scaled_scores
from pallas_kernels.taylor_attention.sums import output_gradients


def key_or_value_gradient(
    plan: Plan, tables: Any, q: jax.Array, k: jax.Array, v: jax.Array,
    do: jax.Array, rden: jax.Array, dd: jax.Array,
    suffix: tuple[jax.Array, jax.Array] | None, packing: Sequence[jax.Array], wanted: str,
) -> jax.Array:  # fmt: skip
    """dk (B, N, H, K) or dv (B, N, H, V), in the input's dtype.

    One walk for both would keep more in registers than there are.

    Args:
        tables: of `specs.constant_tables`.
        q, k, v, do, rden, dd: as in `query_gradients`.
        suffix: (B, H, blocks, size, V) and (B, H, blocks, K + 1, last), the sums behind each block; None:
            empty ones.
        packing: as in `outputs`.
        wanted: "dk" or "dv".
    """

    def body(q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, rden_ref: Any, dd_ref: Any, *refs: Any) -> None:
        packing, suffix_refs, query_features, key_features, (out_ref,) = specs.unpack(
            plan, refs, suffix is not None
        )
        tile = specs.value_tile(plan)
        start = specs.block_start(plan)
        share = share_of_normaliser(plan, tile)
        steps = plan.block // plan.chunk

        def step(i: Any, state: State) -> State:
            chunk = Chunk(plan, start + (steps - 1 - i) * plan.chunk, packing)
            k = chunk.keys(k_ref)
            # Loaded late, and twice: registers are what this kernel has too few of.
            if wanted == "dv":
                dv = _dv_behind_state(plan, key_features.at(i), state, k)
                dn, x = output_gradients(chunk, do_ref, rden_ref, tile), chunk.queries(q_ref)
                visible, sees_state = _visibility(chunk, packing)
                dv = dv if sees_state is None else jnp.where(sees_state[:, None], dv, 0.0)
                scores = scaled_scores(plan, k, x)
                p = jnp.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
                chunk.put_values(out_ref, plan.dot(p, dn, (1, 0), dv), tile)
            else:
                v = chunk.values(v_ref, tile)
                dk = _dk_behind_state(plan, key_features.at(i), state, k, v, share)
                dn, x = output_gradients(chunk, do_ref, rden_ref, tile), chunk.queries(q_ref)
                dd = chunk.numbers(dd_ref) * share
                visible, sees_state = _visibility(chunk, packing)
                dk = dk if sees_state is None else jnp.where(sees_state[:, None], dk, 0.0)
                scores = scaled_scores(plan, k, x)
                dscores = plan.dot(v, dn, (1, 1)) + dd[None, :]
                dscores = jnp.where(visible, dscores * slope(plan, scores), 0.0)
                chunk.put_keys(out_ref, plan.dot(dscores, x, (1, 0), dk))
            x, dn = chunk.queries(q_ref), output_gradients(chunk, do_ref, rden_ref, tile)
            stays, dn, dd = chunk.leaving(dn, chunk.numbers(dd_ref))
            return add_tokens(plan, query_features.at(i), only_if(stays, state), x, dn, dd, 0.0)

        state = empty_state(plan) if suffix_refs is None else load_state(plan, *suffix_refs, tile)
        lax.fori_loop(0, steps, step, state)

    keys, values, numbers = specs.keys(plan), specs.values(plan), specs.numbers(plan)
    shape = jax.ShapeDtypeStruct
    if wanted == "dk":
        out_spec, out_shape = specs.key_gradients(plan), (plan.value_tiles, *k.shape)
    else:
        out_spec, out_shape = values, v.shape
    result = specs.run(
        plan, body, wanted, blocks=plan.blocks,
        operands=[q, k, v, do, rden, dd], in_specs=[keys, keys, values, values, numbers, numbers],
        packing=packing, states=suffix, tables=tables, out_specs=out_spec,
        out_shape=shape(out_shape, share_dtype(plan, k) if wanted == "dk" else v.dtype),
    )  # fmt: skip
    return sum_of_shares(result, k) if wanted == "dk" else result


def _visibility(chunk: Chunk, packing: Packing | None) -> tuple[jax.Array, Any]:
    """As `outputs.visibility` with keys along the rows, and which keys the queries behind the chunk see."""
    token = jnp.arange(chunk.plan.chunk)
    visible = token[:, None] <= token[None, :]
    if packing is None:
        return visible, None
    sees = chunk.index >= chunk.start_at(chunk.end)
    return visible & (chunk.index[:, None] >= chunk.starts()[None, :]), sees


def _dv_behind_state(plan: Plan, features: Features, state: State, k: jax.Array) -> jax.Array:
    """(C, V) gradient of the values through what later queries read from them."""
    dv: Any = None
    for i in reversed(range(len(state.tiles))):
        dv = read_tile(plan, state, i, features.by_token(k, i), dv)
    return dv


def _dk_behind_state(
    plan: Plan, features: Features, state: State, k: jax.Array, v: jax.Array, share: Any
) -> jax.Array:
    """(C, K) gradient of the keys through what later queries read from them."""
    dk: Any = None
    for i in reversed(range(len(state.tiles))):
        one, two = features.factors(k, i)
        if dk is None:
            dk = features.normaliser_gradient(state, features.product((one, two), i)) * share
        dk = features.gradient((one, two), i, tile_gradient(plan, state, i, v), dk)
    return dk
