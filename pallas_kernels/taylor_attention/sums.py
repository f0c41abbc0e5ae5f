"""Pass 1: the state that each block of tokens adds, all blocks at once.

Forward of keys and values, S_b = sum phi(k) v^T; backward of queries and output gradients,
T_b = sum phi(q) dn^T with the normaliser's gradients dd as weights of the moments. With segments, a block
adds the keys that its last token sees, and the queries that see a token before the block.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.blocks import (
    Chunk,
    Plan,
    add_tokens,
    empty_state,
    only_if,
    store_state,
)


def key_sums(
    plan: Plan, tables: Any, k: jax.Array, v: jax.Array, packing: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Sums over the keys of every block but the last.

    Args:
        tables: of `specs.constant_tables`.
        k: (B, N, H, K).
        v: (B, N, H, V).
        packing: starts (B, N) and counts (B,), see `Packing`; empty unless packed.

    Returns:
        (B, H, blocks - 1, size, V) and (B, H, blocks - 1, K + 1, last), float32.
    """

    def body(k_ref: Any, v_ref: Any, *refs: Any) -> None:
        packing, _, _, features, out_refs = specs.unpack(plan, refs, False)
        tile = specs.value_tile(plan)
        start = specs.block_start(plan)

        def step(c: Any, state: Any) -> Any:
            chunk = Chunk(plan, start + c * plan.chunk, packing)
            stays, x, u, count = chunk.entering(chunk.keys(k_ref), chunk.values(v_ref, tile))
            return add_tokens(plan, features.at(c), only_if(stays, state), x, u, None, count)

        state = lax.fori_loop(0, plan.block // plan.chunk, step, empty_state(plan))
        store_state(plan, state, out_refs[0], out_refs[1], tile)

    return _run(
        plan,
        tables,
        body,
        [k, v],
        [specs.keys(plan), specs.values(plan)],
        packing,
        "key_sums",
        plan.blocks - 1,
    )


def query_sums(
    plan: Plan, tables: Any, q: jax.Array, do: jax.Array, rden: jax.Array, dd: jax.Array,
    packing: Sequence[jax.Array], first: int,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Sums over the queries of each block from number `first` on, for the gradients of what is before it.

    Args:
        q: (B, N, H, K).
        do: (B, N, H, V) gradient of the outputs.
        rden: (B, H, N) reciprocal normalisers, 0 in padding.
        dd: (B, H, N) gradient of the normalisers.
        packing: as in `key_sums`.
        first: 1 for the gradients of keys and values, 0 for the initial state's too.

    Returns:
        (B, H, blocks - first, size, V) and (B, H, blocks - first, K + 1, last), float32.
    """

    def body(q_ref: Any, do_ref: Any, rden_ref: Any, dd_ref: Any, *refs: Any) -> None:
        packing, _, features, _, out_refs = specs.unpack(plan, refs, False)
        tile = specs.value_tile(plan)
        start, steps = specs.block_start(plan, first), plan.block // plan.chunk

        def step(c: Any, state: Any) -> Any:
            chunk = Chunk(plan, start + (steps - 1 - c) * plan.chunk, packing)
            u, x = output_gradients(chunk, do_ref, rden_ref, tile), chunk.queries(q_ref)
            stays, u, weight = chunk.leaving(u, chunk.numbers(dd_ref))
            return add_tokens(plan, features.at(c), only_if(stays, state), x, u, weight, jnp.sum(weight))

        state = lax.fori_loop(0, steps, step, empty_state(plan))
        store_state(plan, state, out_refs[0], out_refs[1], tile)

    in_specs = [specs.keys(plan), specs.values(plan), specs.numbers(plan), specs.numbers(plan)]
    return _run(plan, tables, body, [q, do, rden, dd], in_specs, packing, "query_sums", plan.blocks - first)


def output_gradients(chunk: Chunk, do_ref: Any, rden_ref: Any, tile: Any) -> jax.Array:
    """(C, V) dn = do / (normaliser + eps): the gradient of the numerators."""
    do = chunk.values(do_ref, tile).astype(jnp.float32)
    return (do * chunk.numbers(rden_ref)[:, None]).astype(chunk.plan.operand)


def _run(
    plan: Plan, tables: Any, body: Any, operands: Any, in_specs: Any, packing: Any, name: str, blocks: int
) -> tuple[jax.Array, jax.Array]:
    return specs.run(
        plan, body, name, blocks=blocks, operands=operands, in_specs=in_specs, packing=packing, states=None,
        tables=tables, out_specs=specs.block_states(plan), out_shape=specs.state_shapes(plan, blocks),
    )  # fmt: skip
