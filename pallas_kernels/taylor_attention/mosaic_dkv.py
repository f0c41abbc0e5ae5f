"""The gradients of keys and values of one chunk in a program of the Mosaic kernels, keys along the rows.

x = k q^T / 4,  p = causal (1 + x + x^2 / 2) / normaliser,  dx = causal (v do^T + e) (1 + x) / normaliser
dv = p do + phi(k) T^T
dk = dx q / 4 + phi'(k) (v T) + sum e q / 4 + k (sum e q q^T) / 16
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention import mosaic_launch as gpu
from pallas_kernels.taylor_attention.mosaic_chunk import Chunk
from pallas_kernels.taylor_attention.mosaic_dq import store_keys, through_state
from pallas_kernels.taylor_attention.mosaic_features import KEY_SIZE
from pallas_kernels.taylor_attention.mosaic_launch import plgpu
from pallas_kernels.taylor_attention.mosaic_outputs import with_sums
from pallas_kernels.taylor_attention.mosaic_plan import PART, State, bf16, f32

STRIP = 32
"""Queries of one product of scores: with 64, addresses would not fit into the registers and be spilled."""


class Queries(NamedTuple):
    """Queries of a chunk: their slice, the index of the first one in the row, and a function that returns
    which see a key, (64, 32) or one boolean for all."""

    rows: Any
    first: Any
    see: Any


def _queries(chunk: Chunk) -> list[Queries]:
    """Return the last 64 queries (which see the first warpgroup's keys only), and those at its own keys."""
    program = chunk.program

    def causal(start: int) -> jax.Array:
        return gpu.iota((PART, STRIP), 0) + chunk.zero <= gpu.iota((PART, STRIP), 1) + start

    starts = range(0, PART, STRIP)
    last, own = PART, program.group * PART
    return [
        Queries(pl.ds(last + n, STRIP), chunk.start + last + n, lambda: program.group == 0) for n in starts
    ] + [Queries(pl.ds(own + n, STRIP), chunk.first + n, functools.partial(causal, n)) for n in starts]


def read(chunk: Chunk, state: State, dk: Any, dv: Any) -> None:
    """Store the gradients of this warpgroup's keys and values."""
    program, packed = chunk.program, chunk.plan.packed
    k = gpu.load(chunk.own("plain_k"))
    index, visible = None, None
    if packed:
        index = chunk.first + gpu.rows_iota(PART)
        visible = (index >= chunk.next_segment()) & chunk.real()

    def accumulate(of_values: Any, of_keys: Any) -> tuple[jax.Array, jax.Array]:
        for queries in _queries(chunk):
            p, dx = _scores(chunk, k, queries, index)
            gpu.multiply(of_values, p, chunk.at("do", queries.rows), chunk.staging())
            gpu.multiply(of_keys, dx, chunk.at("q", queries.rows), chunk.staging())
        weight = None if visible is None else visible.astype(f32).astype(bf16)
        phi = chunk.features("k", chunk.scaled(k, features.NO_WEIGHTS), weight)
        gpu.multiply(of_values, phi, chunk.scratch["kv"].at[chunk.zero].T, chunk.staging())
        return of_values[...], of_keys[...] * 0.5

    accumulators = (plgpu.ACC((PART, width), f32) for width in (PART, KEY_SIZE))
    values, keys = pl.run_scoped(accumulate, *accumulators)
    if packed:
        values, keys = (jnp.where(gpu.along_rows(chunk.real(), x.shape[1]), x, 0.0) for x in (values, keys))
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    out = chunk.scratch["values_out"].at[program.group]
    out[...] = values.astype(bf16)
    plgpu.commit_smem()
    target = (program.row, pl.ds(chunk.first, PART), program.head, program.values)
    plgpu.copy_smem_to_gmem(out, dv.at[target])
    gradient, squares, _ = through_state(chunk, "k", k, "v", features.NO_WEIGHTS, chunk.write_features)
    gradient = gradient + with_sums(chunk, squares, 1 / 4)
    if visible is not None:
        gradient = jnp.where(gpu.along_rows(visible, KEY_SIZE), gradient, 0.0)
    store_keys(chunk, keys + gradient, dk)


def _scores(chunk: Chunk, k: jax.Array, queries: Queries, index: Any) -> tuple[jax.Array, jax.Array]:
    """Return (64, 32) p and dx / 2 of some queries of the chunk, bfloat16; `index` of the keys if packed."""
    x, dx = gpu.products(
        (k, chunk.at("q", queries.rows).T, STRIP, chunk.staging()),
        (chunk.own("v"), chunk.at("do", queries.rows).T, STRIP, None),
    )
    see = queries.see()
    if index is not None:
        starts = chunk.starts(queries.first, STRIP, gpu.COLUMN)
        see = see & (gpu.along_rows(index, STRIP) >= _along_columns(starts))
    rden, e = (_along_columns(gpu.load(chunk.at(name, queries.rows), gpu.COLUMN)) for name in ("rden", "e"))
    # With s = 1 + x / 4: 1 + x / 4 + x^2 / 32 = (1 + s^2) / 2, and its derivative is s / 4.
    half, s = jnp.where(see, rden * 0.5, 0.0), 1 + x * (1 / 4)
    scaled = half * s
    return (half + scaled * s).astype(bf16), ((dx + e) * scaled).astype(bf16)


def _along_columns(x: jax.Array) -> jax.Array:
    """Return (32,) as (64, 32), the same in each row."""
    return lax.broadcast_in_dim(x, (PART, STRIP), (1,))
