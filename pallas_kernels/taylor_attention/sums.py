"""Passes 1 and 2: each block's contribution to the state, and their sums, the states before every block.

Contributions, for all blocks in parallel: forward of keys and values, S_b = sum phi(k) v^T; backward of
queries and output gradients, T_b = sum phi(q) dn^T with the normaliser's gradients dd as weights of the
moments. With segments, a block adds only keys visible to its last token, and queries that see a token
before the block. Running sums:

    out_0 = initial,   out_{b+1} = keep_b out_b + x_b         (reversed: the same from the other end)

They read and write the states once; a difference of `cumsum`s would lose the resets between segments.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import blocks, launch, load, quotient, remainder, store
from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.blocks import Chunk, Plan, State, add_tokens, only_if, store_state

RESULTS = [(axes, jnp.float32) for axes in specs.BLOCK_STATES]

ELEMENTS = 1024
"""Elements of a state per program: 10 programs per row and head for K 16, V 64."""

WARPS = 4


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


def kept_before(plan: Any, starts: jax.Array) -> jax.Array:
    """Return (B, blocks - 1): 1 where the state before a block stays in it, if its last token sees that."""
    ends = jnp.arange(1, plan.blocks) * plan.block
    return (starts[:, ends - 1] < ends - plan.block).astype(jnp.float32)


def kept_after(plan: Any, starts: jax.Array, first: int) -> jax.Array:
    """Return (B, blocks - first): 1 where the first token after a block sees what is before the block."""
    begin = jnp.arange(first, plan.blocks) * plan.block
    after = jnp.minimum(begin + plan.block, plan.length - 1)
    return (starts[:, after] < begin).astype(jnp.float32)


def scan_states(
    sums: jax.Array, initial: jax.Array | None, keep: jax.Array | None, reverse: bool = False
) -> jax.Array:
    """Compute exclusive running sums of block states.

    Args:
        sums: (B, H, blocks - 1, ...) float32.
        initial: (B, H, ...), the first value; None for zeros.
        keep: (B, blocks - 1) float32, 0 where the sums restart after that block, else 1; None for all 1.
        reverse: sum from the last block to the first; `sums` are then of blocks 1, 2, ...

    Returns:
        (B, H, blocks, ...): the initial state of each block.
    """
    batch, heads, steps, *rest = sums.shape
    size = math.prod(rest)
    parts = -(-size // ELEMENTS)

    def at(i: Any) -> dict[str, Any]:
        """Return row, head and part of a state of program i: one axis, since CUDA limits the others."""
        row, head = quotient(i, heads * parts), remainder(quotient(i, parts), heads)
        return {"b": row, "h": head, "e": remainder(i, parts)}

    def body(sums_ref: Any, *refs: Any) -> None:
        *optional, out_ref = refs
        keep_ref = optional.pop() if keep is not None else None
        index = at(pl.program_id(0))["e"] * ELEMENTS + jnp.arange(ELEMENTS)
        valid = index < size if size % ELEMENTS else None
        start = load(optional[0], (slice(None),), valid) if optional else jnp.zeros((ELEMENTS,), jnp.float32)

        def step(i: Any, total: jax.Array) -> jax.Array:
            block = steps - 1 - i if reverse else i
            store(out_ref, (block + reverse, slice(None)), total, valid)
            if keep_ref is not None:
                total = total * keep_ref[block]
            return total + load(sums_ref, (block, slice(None)), valid)

        total = lax.fori_loop(0, steps, step, start)
        store(out_ref, (jnp.int32(0 if reverse else steps), slice(None)), total, valid)

    operands, axes = [sums.reshape(batch, heads, steps, size)], ["bhse"]
    if initial is not None:
        operands.append(initial.reshape(batch, heads, size))
        axes.append("bhe")
    if keep is not None:
        operands.append(keep)
        axes.append("bs")
    spec = functools.partial(blocks, sizes={"s": steps, "r": steps + 1, "e": ELEMENTS}, at=at)
    found = launch(
        body,
        *operands,
        grid=(batch * heads * parts,),
        in_specs=[*map(spec, axes)],
        out_specs=spec("bhre"),
        out_shape=jax.ShapeDtypeStruct((batch, heads, steps + 1, size), jnp.float32),
        warps=WARPS,
        name="taylor_scan",
    )
    return found.reshape(batch, heads, steps + 1, *rest)
