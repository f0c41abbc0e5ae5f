"""Pass 1: each block's contribution to the state, for all blocks in parallel.

Forward of keys and values, S_b = sum phi(k) v^T; backward of queries and output gradients,
T_b = sum phi(q) dn^T with the normaliser's gradients dd as weights of the moments. With segments, a block
adds only keys visible to its last token, and queries that see a token before the block.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.blocks import Chunk, Plan, State, add_tokens, only_if, store_state

RESULTS = [(axes, jnp.float32) for axes in specs.BLOCK_STATES]


def key_sums(
    plan: Plan, tables: Any, arrays: Sequence[jax.Array], packing: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return the sums over the keys of every block but the last.

    Args:
        tables: from `specs.constant_tables`.
        arrays: k (B, N, H, K) and v (B, N, H, V).
        packing: see `specs.run`.

    Returns:
        (B, H, blocks - 1, size, V) and (B, H, blocks - 1, K + 1, last), float32.
    """

    def body(k_ref: Any, v_ref: Any, *refs: Any) -> None:
        here = specs.running(plan, refs)

        def step(c: Any, state: State) -> State:
            chunk = here.chunk(c)
            stays, x, u, count = chunk.entering(chunk.keys(k_ref), chunk.values(v_ref, here.tile))
            return add_tokens(plan, here.key_features.at(c), state, stays, x, u, None, count)

        store_state(plan, here.walk(step), here.outputs, here.tile)

    axes, count = ("bnhk", "bnhv"), plan.blocks - 1
    return specs.run(plan, body, "key_sums", arrays, axes, packing, tables, RESULTS, count=count)


def query_sums(
    plan: Plan, tables: Any, arrays: Sequence[jax.Array], packing: Sequence[jax.Array], first: int
) -> tuple[jax.Array, ...]:
    """Return the sums over the queries of each block from block `first` on, for gradients of earlier tokens.

    Args:
        arrays: q (B, N, H, K); do (B, N, H, V), gradient of the outputs; rden (B, H, N), reciprocal
            normalisers, 0 in padding; dd (B, H, N), gradient of the normalisers.
        first: 1 for the gradients of keys and values, 0 to include the initial state's.

    Returns:
        (B, H, blocks - first, size, V) and (B, H, blocks - first, K + 1, last), float32.
    """

    def body(q_ref: Any, do_ref: Any, rden_ref: Any, dd_ref: Any, *refs: Any) -> None:
        here, steps = specs.running(plan, refs, first=first), plan.block // plan.chunk

        def step(c: Any, state: State) -> State:
            chunk = here.chunk(steps - 1 - c)
            u, x = output_gradients(chunk, do_ref, rden_ref, here.tile), chunk.queries(q_ref)
            stays, u, weight = chunk.leaving(u, chunk.numbers(dd_ref))
            features = here.query_features.at(c)
            return add_tokens(plan, features, only_if(stays, state), None, x, u, weight, weight)

        state = here.walk(step, jnp.zeros(plan.chunk, jnp.float32))
        store_state(plan, state._replace(count=jnp.sum(state.count)), here.outputs, here.tile)

    axes, count = ("bnhk", "bnhv", "bhn", "bhn"), plan.blocks - first
    return specs.run(plan, body, "query_sums", arrays, axes, packing, tables, RESULTS, count=count)


def output_gradients(chunk: Chunk, do_ref: Any, rden_ref: Any, tile: Any) -> jax.Array:
    """Return (C, V) dn = do / (normaliser + eps): the gradient of the numerators."""
    do = chunk.values(do_ref, tile).astype(jnp.float32)
    return (do * chunk.numbers(rden_ref)[:, None]).astype(chunk.plan.operand)
