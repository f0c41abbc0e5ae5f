"""Both passes in Hopper's instructions, by Mosaic GPU; arguments and results as the other kernels.

    key_sums    ->  running sums  ->  outputs        (one block per row and head: `outputs` alone)
    key_sums    ->  running sums  ->  dq             (the same, in the backward pass)
    query_sums  ->  running sums  ->  dk and dv

Importing this needs the release of jax in `mosaic_support`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.taylor_attention.gradients import sum_of_shares
from pallas_kernels.taylor_attention.mosaic_features import COUNT
from pallas_kernels.taylor_attention.mosaic_kernel import (
    key_and_value_gradients,
    key_sums,
    outputs,
    query_gradients,
    query_sums,
)
from pallas_kernels.taylor_attention.mosaic_plan import CHUNK, PART, Plan
from pallas_kernels.taylor_attention.sums import kept_after, kept_before

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
    inputs, packing = _padded(plan, {"q": q, "k": k, "v": v}, packing)
    prefix = _prefix(plan, inputs, packing, state)
    y, rden, *final = outputs(plan, inputs, packing, prefix, return_state)
    results = (y[:, :length, :, :value_size], rden[:, :, :length])
    if not return_state:
        return results
    kv, moments = (x[:, :, 0] for x in final)
    if not packing:  # zero keys only add to the count
        moments = moments.at[..., COUNT, :].add(length - plan.length)
    return *results, kv[:, :, :value_size], moments


def backward(
    arrays: dict[str, jax.Array], packing: Sequence[jax.Array], state: Any, dfinal: Any, *, block: int | None
) -> tuple[jax.Array, ...]:
    """Return the gradients of q, k, v and, with an initial state, the sums over all queries that see it.

    Args:
        arrays: q, k, v, do (gradient of the outputs), y, all (B, N, H, dim), and rden (B, H, N).
        packing, state, block: as for `forward`.
        dfinal: gradient of the final state, from `gradient_from_portable`; or None.
    """
    length, value_size = arrays["v"].shape[1], arrays["v"].shape[3]
    plan = make_plan(arrays["q"].shape, value_size, block, 0.0, bool(packing))
    inputs, padded = _padded(plan, arrays, packing)
    shares, e = query_gradients(plan, inputs, padded, _prefix(plan, inputs, padded, state))
    del inputs["y"]
    inputs["e"] = e
    suffix, dstate = _suffix(plan, inputs, padded, dfinal, 0 if state is not None else 1)
    key_shares, dv = key_and_value_gradients(plan, inputs, padded, suffix)
    dq, dk = (sum_of_shares(x, arrays["q"])[:, :length] for x in (shares, key_shares))
    if dstate:
        dstate = (dstate[0][:, :, :value_size], dstate[1])
    return dq, dk, dv[:, :length, :, :value_size], *dstate


def _padded(
    plan: Plan, arrays: dict[str, jax.Array], packing: Sequence[jax.Array]
) -> tuple[dict[str, jax.Array], tuple[jax.Array, ...]]:
    """Return the arrays as the kernels take them."""
    arrays = dict(arrays)
    for name, x in arrays.items():
        # Copies pad arrays with zeros to whole tiles when loading, and drop the padding when storing.
        axis = 2 if name == "rden" else 1
        if x.shape[axis] % 8 or x.shape[axis] < CHUNK:
            x = _pad(x, plan.length, axis)
        if name in ("v", "do", "y") and (x.shape[3] % 16 or x.shape[3] < PART):
            x = _pad(x, plan.values, 3)
        arrays[name] = x
    if not packing:
        return arrays, ()
    return arrays, (_pad(packing[0], plan.length, 1, mode="edge"), packing[1])


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


def _prefix(plan: Plan, inputs: dict[str, jax.Array], packing: Any, state: Any) -> tuple[jax.Array, ...]:
    """Return the initial state of each block; empty if there is none."""
    initial = () if state is None else (_pad(state[0], plan.values, 2), state[1])
    if plan.blocks == 1:
        return tuple(x[:, :, None] for x in initial)
    sums = key_sums(plan, {name: inputs[name] for name in ("k", "v")}, packing)
    keep = kept_before(plan, packing[0]) if packing else jnp.ones((plan.batch, plan.blocks - 1))
    return tuple(map(running_sums, sums, initial or (None, None), (keep, keep)))


def _suffix(
    plan: Plan, inputs: dict[str, jax.Array], packing: Any, dfinal: Any, first: int
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Return the sums over the queries after each block, the final state's gradient included, and over all.

    The former are empty for one block without a final gradient; the latter unless `first` is 0.
    """
    final = ()
    if dfinal is not None:  # parts add their moments: the first one has the given ones
        kv, moments = dfinal
        shares = jnp.repeat(moments, plan.parts, axis=1)
        first_part = jnp.arange(shares.shape[1]) % plan.parts == 0
        final = (_pad(kv, plan.values, 2), jnp.where(first_part[:, None, None], shares, 0.0))
    if plan.blocks == first:
        return tuple(x[:, :, None] for x in final), ()
    names = ("q", "do", "rden", "e")
    sums = query_sums(plan, {name: inputs[name] for name in names}, packing, first)
    keep = kept_after(plan, packing[0], first) if packing else jnp.ones((plan.batch, plan.blocks - first))
    suffix = []
    for x, initial in zip(sums, final or (None, None), strict=True):
        suffix.append(running_sums(x[:, :, ::-1], initial, keep[:, ::-1])[:, :, ::-1])
    if first:
        return tuple(suffix), ()
    return tuple(x[:, :, 1:] for x in suffix), _state_gradient(plan, inputs, packing, suffix)


def _state_gradient(
    plan: Plan, inputs: dict[str, jax.Array], packing: Any, sums: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return the sums over all queries that see the initial state, whose parts are added."""
    parts = (plan.batch, plan.heads, plan.parts)
    kv, moments = (x[:, :, 0] for x in sums)
    moments, e = (x.reshape(*parts, *x.shape[2:]).sum(axis=2) for x in (moments, inputs["e"]))
    counted = e[:, :, : inputs["rden"].shape[2]] * inputs["rden"]
    if packing:
        counted = jnp.where(packing[0][:, None, : counted.shape[2]] < 0, counted, 0.0)
    return kv, moments.at[..., COUNT, :].add(counted.sum(axis=2)[..., None])


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
