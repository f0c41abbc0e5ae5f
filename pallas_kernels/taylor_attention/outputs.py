"""Pass 3: outputs. Each program scans its block of tokens, starting from the state before it.

    x = q k^T,  p = causal (1 + x + x^2 / 2)
    y = (p v + phi(q) S) / (rowsum(p) + q . z + eps),  then  S += phi(k) v^T

With one block per row and head this is the whole forward pass.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import blocks, specs
from pallas_kernels.taylor_attention.blocks import Chunk, Features, Packing, Plan, State


def outputs(
    plan: Plan,
    tables: Any,
    arrays: Sequence[jax.Array],
    packing: Sequence[jax.Array],
    prefix: tuple[jax.Array, ...] | None,
    eps: float,
    return_state: bool,
) -> tuple[jax.Array, ...]:
    """Return the outputs, reciprocal normalisers and, on request, the state after the last token.

    Args:
        tables: from `specs.constant_tables`.
        arrays: q, k (B, N, H, K) and v (B, N, H, V).
        packing: see `specs.run`.
        prefix: (B, H, blocks, size, V) and (B, H, blocks, K + 1, last), the states before each block; None
            for empty states.
    """

    def body(q_ref: Any, k_ref: Any, v_ref: Any, *refs: Any) -> None:
        here = specs.running(plan, refs, prefix is not None)

        def step(c: Any, state: State) -> State:
            chunk = here.chunk(c)
            x = chunk.queries(q_ref)
            visible, sees_state = visibility(chunk, here.packing)
            numerator, normaliser = _read_state(plan, here.query_features.at(c), state, x, sees_state)
            # Load as late as possible: this kernel is short of registers.
            k, v = chunk.keys(k_ref), chunk.values(v_ref, here.tile)
            scores = scaled_scores(plan, x, k)
            p = jnp.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
            normaliser = normaliser + jnp.sum(p, axis=1) + eps
            numerator = plan.dot(p, v, (1, 0), numerator)
            reciprocal = 1 / normaliser
            if plan.packed and chunk.real is not None:
                reciprocal = jnp.where(chunk.real, reciprocal, 0.0)
            chunk.put_values(here.outputs[0], numerator * reciprocal[:, None], here.tile)
            chunk.put_numbers(here.outputs[1], reciprocal, here.tile == 0)
            stays, k, v, count = chunk.entering(k, v)
            return blocks.add_tokens(plan, here.key_features.at(c), state, stays, k, v, None, count)

        state = here.walk(step)
        if return_state:
            is_last = pl.program_id(1) == plan.blocks - 1
            pl.when(is_last)(lambda: blocks.store_state(plan, state, here.outputs[2:], here.tile))

    axes = ("bnhk", "bnhk", "bnhv")
    results = [("bnhv", arrays[2].dtype), ("bhn", jnp.float32)]
    results += [(state, jnp.float32) for state in specs.STATE if return_state]
    return specs.run(plan, body, "outputs", arrays, axes, packing, tables, results, states=prefix)


def scaled_scores(plan: Plan, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return (C, C) products of queries and keys, or of keys and queries, over sqrt(K)."""
    scores, factor = plan.dot(a, b, (1, 1)), plan.scales[1]
    return scores if factor == 1 else scores * factor


def visibility(chunk: Chunk, packing: Packing | None) -> tuple[jax.Array, Any]:
    """Return (C, C), which keys of the chunk a query sees, and (C,), which queries see the state."""
    token = jnp.arange(chunk.plan.chunk)  # within the chunk: the comparison is the same in every iteration
    visible = token[:, None] >= token[None, :]
    if packing is None:
        return visible, None
    starts = chunk.starts()
    return visible & (chunk.index[None, :] >= starts[:, None]), starts < chunk.start


def _read_state(
    plan: Plan, features: Features, state: State, x: jax.Array, sees_state: Any
) -> tuple[jax.Array, jax.Array]:
    """Return (C, V) phi(q) S and (C,) q . z, zero for the queries that do not see the state."""
    numerator: Any = None
    phi = x
    for tile in range(len(state.tiles)):
        phi = features.by_token(x, tile)
        numerator = blocks.read_tile(plan, state, tile, phi, numerator)
    normaliser = features.normaliser(state, x, phi)
    if sees_state is not None:
        numerator = jnp.where(sees_state[:, None], numerator, 0.0)
        normaliser = jnp.where(sees_state, normaliser, 0.0)
    return numerator, normaliser
