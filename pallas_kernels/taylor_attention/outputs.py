"""Pass 3: outputs. Each program walks through its block of tokens with the state of all before it.

    x = q k^T,  p = causal (1 + x + x^2 / 2)
    y = (p v + phi(q) S) / (rowsum(p) + q . z + eps),  then  S += phi(k) v^T

With one block per row and head this is the whole forward pass.
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
)


def outputs(
    plan: Plan, tables: Any, eps: float, q: jax.Array, k: jax.Array, v: jax.Array,
    prefix: tuple[jax.Array, jax.Array] | None,
    packing: Sequence[jax.Array], return_state: bool,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Outputs, reciprocal normalisers and, on request, the state behind the last token.

    Args:
        tables: of `specs.constant_tables`.
        q, k, v: (B, N, H, K), (B, N, H, K), (B, N, H, V).
        prefix: (B, H, blocks, size, V) and (B, H, blocks, K + 1, last), the states before each block; None:
            empty ones.
        packing: starts (B, N) and counts (B,), see `Packing`; empty unless packed.
    """

    def body(q_ref: Any, k_ref: Any, v_ref: Any, *refs: Any) -> None:
        packing, prefix_refs, query_features, key_features, out_refs = specs.unpack(
            plan, refs, prefix is not None
        )
        tile = specs.value_tile(plan)
        start = specs.block_start(plan)

        def step(c: Any, state: State) -> State:
            chunk = Chunk(plan, start + c * plan.chunk, packing)
            x = chunk.queries(q_ref)
            visible, sees_state = visibility(chunk, packing)
            numerator, normaliser = _read_state(plan, query_features.at(c), state, x, sees_state)
            # Loaded only now: registers are what this kernel has too few of.
            k, v = chunk.keys(k_ref), chunk.values(v_ref, tile)
            scores = scaled_scores(plan, x, k)
            p = jnp.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
            normaliser = normaliser + jnp.sum(p, axis=1) + eps
            numerator = plan.dot(p, v, (1, 0), numerator)
            reciprocal = 1 / normaliser
            if packing and chunk.real is not None:
                reciprocal = jnp.where(chunk.real, reciprocal, 0.0)
            chunk.put_values(out_refs[0], numerator * reciprocal[:, None], tile)
            chunk.put_numbers(out_refs[1], reciprocal, tile == 0)
            stays, k, v, count = chunk.entering(k, v)
            return add_tokens(plan, key_features.at(c), only_if(stays, state), k, v, None, count)

        state = empty_state(plan) if prefix_refs is None else load_state(plan, *prefix_refs, tile)
        state = lax.fori_loop(0, plan.block // plan.chunk, step, state)
        if return_state:
            is_last = pl.program_id(1) == plan.blocks - 1

            @pl.when(is_last)
            def _store() -> None:
                store_state(plan, state, out_refs[2], out_refs[3], tile)

    out_specs = [specs.values(plan), specs.numbers(plan)]
    out_shape = [
        jax.ShapeDtypeStruct(v.shape, v.dtype),
        jax.ShapeDtypeStruct((plan.batch, plan.heads, plan.length), jnp.float32),
    ]
    if return_state:
        out_specs += specs.states(plan)
        out_shape += specs.state_shapes(plan)
    return specs.run(
        plan, body, "outputs", blocks=plan.blocks,
        operands=[q, k, v], in_specs=[specs.keys(plan), specs.keys(plan), specs.values(plan)],
        packing=packing, states=prefix, tables=tables, out_specs=out_specs, out_shape=out_shape,
    )  # fmt: skip


def scaled_scores(plan: Plan, a: jax.Array, b: jax.Array) -> jax.Array:
    """(C, C) products of queries and keys, or of keys and queries, over sqrt(K)."""
    scores, (_, behind) = plan.dot(a, b, (1, 1)), plan.scales
    return scores if behind == 1 else scores * behind


def visibility(chunk: Chunk, packing: Packing | None) -> tuple[jax.Array, Any]:
    """(C, C) which keys of the chunk a query sees, and (C,) which queries see the state (None: all)."""
    token = jnp.arange(chunk.plan.chunk)  # within the chunk: the comparison is the same in every round
    visible = token[:, None] >= token[None, :]
    if packing is None:
        return visible, None
    starts = chunk.starts()
    return visible & (chunk.index[None, :] >= starts[:, None]), starts < chunk.start


def _read_state(
    plan: Plan, features: Features, state: State, x: jax.Array, sees_state: Any
) -> tuple[jax.Array, jax.Array]:
    """(C, V) phi(q) S and (C,) q . z, zero for the queries that do not see the state."""
    numerator: Any = None
    phi = x
    for tile in range(len(state.tiles)):
        phi = features.by_token(x, tile)
        numerator = read_tile(plan, state, tile, phi, numerator)
    normaliser = features.normaliser(state, x, phi)
    if sees_state is not None:
        numerator = jnp.where(sees_state[:, None], numerator, 0.0)
        normaliser = jnp.where(sees_state, normaliser, 0.0)
    return numerator, normaliser
