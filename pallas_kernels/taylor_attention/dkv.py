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
from jax.experimental import pallas as pl

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
    store_state,
    tile_gradient,
)
from pallas_kernels.taylor_attention.dq import share_dtype, sum_of_shares
from pallas_kernels.taylor_attention.sums import output_gradients


def key_value_gradients(
    plan: Plan, tables: Any, q: jax.Array, k: jax.Array, v: jax.Array,
    do: jax.Array, rden: jax.Array, dd: jax.Array,
    suffix: tuple[jax.Array, jax.Array] | None, packing: Sequence[jax.Array],
    wanted: tuple[str, ...], return_state: bool,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Those of dk (B, N, H, K) and dv (B, N, H, V) that are `wanted`, and the gradient of the initial state.

    Args:
        tables: of `specs.constant_tables`.
        q, k, v, do, rden, dd: as in `query_gradients`.
        suffix: (B, H, blocks, size, V) and (B, H, blocks, K + 1, last), the sums behind each block; None:
            empty ones.
        packing: as in `outputs`.
        wanted: of "dk", "dv".
        return_state: whether the sums at the front, the initial state's gradient, are returned too:
            (B, H, size, V) and (B, H, K + 1, last).
    """

    def body(q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, rden_ref: Any, dd_ref: Any, *refs: Any) -> None:
        packing, suffix_refs, query_features, key_features, out_refs = specs.unpack(
            plan, refs, suffix is not None
        )
        grad_refs = dict(zip(wanted, out_refs, strict=False))
        tile = specs.value_tile(plan)
        start = pl.program_id(2) * plan.block
        steps = plan.block // plan.chunk

        def step(i: Any, state: State) -> State:
            chunk = Chunk(plan, start + (steps - 1 - i) * plan.chunk, packing)
            k, v = chunk.keys(k_ref), chunk.values(v_ref, tile)
            visible, sees_state = _visibility(chunk, packing)
            dk, dv = _behind_state(plan, key_features, state, k, v, tile, wanted)
            # Loaded only now: registers are what this kernel has too few of.
            dn = output_gradients(chunk, do_ref, rden_ref, tile)
            x, dd = chunk.queries(q_ref), chunk.numbers(dd_ref)
            # The normaliser counts once; the sums over later queries hold it in every tile.
            dd_here = jnp.where(tile == 0, dd, 0.0) if plan.value_tiles > 1 else dd
            scores = plan.dot(k, x, (1, 1))
            if "dv" in wanted:
                if packing:
                    dv = jnp.where(sees_state[:, None], dv, 0.0)
                p = jnp.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
                chunk.put_values(grad_refs["dv"], plan.dot(p, dn, (1, 0), dv), tile)
            if "dk" in wanted:
                if packing:
                    dk = jnp.where(sees_state[:, None], dk, 0.0)
                dscores = plan.dot(v, dn, (1, 1)) + dd_here[None, :]
                dscores = jnp.where(visible, dscores * (1 + scores), 0.0)
                chunk.put_keys(grad_refs["dk"], plan.dot(dscores, x, (1, 0), dk))
            # Loaded again: kept through the scores they would not fit into the registers.
            dn = output_gradients(chunk, do_ref, rden_ref, tile)
            x, dd = chunk.queries(q_ref), chunk.numbers(dd_ref)
            stays, dn, dd = chunk.leaving(dn, dd)
            count = jnp.sum(dd) if return_state else 0.0
            return add_tokens(plan, query_features, only_if(stays, state), x, dn, dd, count)

        state = empty_state(plan) if suffix_refs is None else load_state(plan, *suffix_refs, tile)
        state = lax.fori_loop(0, steps, step, state)
        if return_state:

            @pl.when(pl.program_id(2) == 0)
            def _store() -> None:
                store_state(plan, state, out_refs[-2], out_refs[-1], tile)

    shape = jax.ShapeDtypeStruct
    outputs = {
        "dk": (specs.key_gradients(plan), shape((plan.value_tiles, *k.shape), share_dtype(plan, k))),
        "dv": (specs.values(plan), shape(v.shape, v.dtype)),
    }
    out_specs, out_shape = (list(x) for x in zip(*(outputs[name] for name in wanted), strict=True))
    if return_state:
        out_specs += specs.states(plan)
        out_shape += specs.state_shapes(plan)
    keys, values, numbers = specs.keys(plan), specs.values(plan), specs.numbers(plan)
    results = specs.run(
        plan, body, "".join(wanted), blocks=plan.blocks,
        operands=[q, k, v, do, rden, dd], in_specs=[keys, keys, values, values, numbers, numbers],
        packing=packing, states=suffix, tables=tables, out_specs=out_specs, out_shape=out_shape,
    )  # fmt: skip
    results = dict(zip((*wanted, "kv", "moments"), results, strict=False))
    if "dk" in results:
        results["dk"] = sum_of_shares(results["dk"], k)
    return tuple(results.values())


def _visibility(chunk: Chunk, packing: Packing | None) -> tuple[jax.Array, Any]:
    """As `outputs.visibility` with keys along the rows, and which keys the queries behind the chunk see."""
    token = jnp.arange(chunk.plan.chunk)
    visible = token[:, None] <= token[None, :]
    if packing is None:
        return visible, None
    starts = chunk.starts() - chunk.start
    # Padding is behind its row's last segment: the final state's gradient must not reach it.
    sees = chunk.real & (chunk.index >= chunk.start_at(chunk.end))
    return visible & (token[:, None] >= starts[None, :]), sees


def _behind_state(
    plan: Plan, features: Features, state: State, k: jax.Array, v: jax.Array, tile: Any, wanted: Any
) -> tuple[Any, Any]:
    """(C, K) and (C, V) gradients of keys and values through what later queries read from them."""
    dk: Any = None
    dv: Any = None
    last = len(state.tiles) - 1
    for i in reversed(range(last + 1)):
        one, two = features.factors(k, i)
        if "dv" in wanted:
            dv = read_tile(plan, state, i, one * two, dv)
        if "dk" in wanted:
            if i == last:
                dk = features.normaliser_gradient(state, one * two)
                dk = jnp.where(tile == 0, dk, 0.0) if plan.value_tiles > 1 else dk
            dk = features.gradient((one, two), i, tile_gradient(plan, state, i, v), dk)
    return dk, dv
