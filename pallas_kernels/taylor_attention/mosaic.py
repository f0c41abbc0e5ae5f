"""The forward pass in Hopper's instructions, by Mosaic GPU; arguments and results as the other kernels.

    key_sums  ->  running sums  ->  outputs        (one block per row and head: `outputs` alone)

Importing this needs the release of jax in `mosaic_support`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.taylor_attention.mosaic_features import COUNT, from_portable, to_portable
from pallas_kernels.taylor_attention.mosaic_kernel import key_sums, outputs
from pallas_kernels.taylor_attention.mosaic_plan import CHUNK, PART, Plan

__all__ = ["forward", "from_portable", "to_portable"]

SLOTS = 132
"""Programs that an H100 or H200 runs at once: one per multiprocessor, whose shared memory it fills."""

SHORTEST_BLOCK = 8
"""Minimum chunks per block: shorter blocks would move more state than tokens."""


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    packing: Sequence[jax.Array],
    state: Any,
    *,
    eps: float,
    block: int | None,
    return_state: bool,
) -> tuple[jax.Array, ...]:
    """Return the outputs (B, N, H, V), reciprocal normalisers (B, H, N) and, on request, the final state.

    Args:
        q, k, v: (B, N, H, 16), (B, N, H, 16), (B, N, H, V) bfloat16.
        packing: starts (B, N) and counts (B,) int32, see `function.taylor_attention`; or empty.
        state: sums over earlier tokens, (B, H, V, 224) and (B, H, 64, 16) float32, from `from_portable`; or
            None.
        block: tokens per program, rounded up to whole chunks of 128; None fills the GPU.
    """
    length, value_size = v.shape[1], v.shape[3]
    plan = make_plan(q.shape, value_size, block, eps, bool(packing))
    # Copies pad arrays with zeros to whole tiles when loading, and drop the padding when storing.
    if length % 8 or length < CHUNK:
        q, k, v = (_pad(x, plan.length, 1) for x in (q, k, v))
    if value_size % 16 or value_size < PART:
        v = _pad(v, plan.values, 3)
    if packing:
        packing = (_pad(packing[0], plan.length, 1, mode="edge"), packing[1])
    prefix = _prefix(plan, k, v, packing, state)
    y, rden, *final = outputs(plan, q, k, v, packing, prefix, return_state)
    results = (y[:, :length, :, :value_size], rden[:, :, :length])
    if not return_state:
        return results
    kv, moments = (x[:, :, 0] for x in final)
    if not packing:  # zero keys only add to the count
        moments = moments.at[..., COUNT, :].add(length - plan.length)
    return *results, kv[:, :, :value_size], moments


def make_plan(shape: Sequence[int], value_size: int, block: int | None, eps: float, packed: bool) -> Plan:
    """Return the sizes for queries of this shape: blocks of equal length, enough programs to fill the GPU."""
    batch, length, heads, _ = shape
    chunks, parts = -(-length // CHUNK), -(-value_size // PART)
    if block is None:
        blocks = min(SLOTS // (batch * heads * parts), chunks // SHORTEST_BLOCK)
        block_chunks = -(-chunks // max(blocks, 1))
    else:
        block_chunks = min(-(-block // CHUNK), chunks)
    return Plan(batch, heads, -(-chunks // block_chunks), block_chunks * CHUNK, parts * PART, eps, packed)


def _prefix(plan: Plan, k: jax.Array, v: jax.Array, packing: Any, state: Any) -> tuple[jax.Array, ...]:
    """Return the initial state of each block; empty if there is none."""
    initial = () if state is None else (_pad(state[0], plan.values, 2), state[1])
    if plan.blocks == 1:
        return tuple(x[:, :, None] for x in initial)
    sums = key_sums(plan, k, v, packing)
    keep = jnp.ones((plan.batch, plan.blocks - 1))
    if packing:  # the state before a block stays in it if the block's last token sees it
        ends = jnp.arange(1, plan.blocks) * plan.block
        keep = (packing[0][:, ends - 1] < ends - plan.block).astype(jnp.float32)
    return tuple(map(running_sums, sums, initial or (None, None), (keep, keep)))


def running_sums(sums: jax.Array, initial: jax.Array | None, keep: jax.Array) -> jax.Array:
    """Compute out_0 = initial, out_{b+1} = keep_b out_b + sums_b.

    Args:
        sums: (B, H, blocks - 1, ...) float32.
        initial: (B, H, ...), or None for zeros.
        keep: (B, blocks - 1), 0 where the sums restart.

    Returns:
        (B, H, blocks, ...).
    """
    first = jnp.zeros_like(sums[:, :, 0]) if initial is None else initial
    terms = jnp.concatenate([first[:, :, None], sums], axis=2)
    factors = jnp.pad(keep, [(0, 0), (1, 0)], constant_values=1)
    factors = jnp.expand_dims(factors, (1, *range(3, terms.ndim)))

    def join(early: Any, late: Any) -> Any:
        return early[0] * late[0], early[1] * late[0] + late[1]

    return lax.associative_scan(join, (factors, terms), axis=2)[1]


def _pad(x: jax.Array, size: int, axis: int, **options: Any) -> jax.Array:
    """Pad `x` at its end to `size` along an axis, with zeros unless `options` set otherwise."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return x if x.shape[axis] == size else jnp.pad(x, widths, **options)
