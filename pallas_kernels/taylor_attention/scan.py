"""Pass 2: running sums of the blocks' contributions, which give the state before every block.

    out_0 = initial,   out_{b+1} = keep_b out_b + x_b         (reversed: the same from the other end)

This reads and writes the states once; a difference of `cumsum`s would lose the resets between segments.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import blocks, launch, load, quotient, remainder, store

ELEMENTS = 1024
"""Elements of a state per program: 10 programs per row and head for K 16, V 64."""

WARPS = 4


def kept_before(plan: Any, starts: jax.Array) -> jax.Array:
    """Return (B, blocks - 1): 1 where the state before a block stays in it, if its last token sees that."""
    ends = jnp.arange(1, plan.blocks) * plan.block
    return (starts[:, ends - 1] < ends - plan.block).astype(jnp.float32)


def kept_after(plan: Any, starts: jax.Array, first: int) -> jax.Array:
    """Return (B, blocks - first): 1 where the sums after a block stay in it, the other way round.

    That is if the first token after the block sees what is before it.
    """
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
        end = jnp.int32(0 if reverse else steps)
        store(out_ref, (end, slice(None)), total, valid)

    operands, axes = [sums.reshape(batch, heads, steps, size)], ["bhse"]
    if initial is not None:
        operands.append(initial.reshape(batch, heads, size))
        axes.append("bhe")
    if keep is not None:
        operands.append(keep)
        axes.append("bs")
    spec = functools.partial(blocks, sizes={"s": steps, "r": steps + 1, "e": ELEMENTS}, at=at)
    shape = jax.ShapeDtypeStruct((batch, heads, steps + 1, size), jnp.float32)
    found = launch(
        body,
        *operands,
        grid=(batch * heads * parts,),
        in_specs=[*map(spec, axes)],
        out_specs=spec("bhre"),
        out_shape=shape,
        warps=WARPS,
        name="taylor_scan",
    )
    return found.reshape(batch, heads, steps + 1, *rest)
