"""The gradients of one chunk in a program of the Mosaic kernels; keys along the rows for keys and values.

x = q k^T / 4,  dx = causal (do v^T + e) (1 + x),  e = -do . y
dq = (dx k / 4 + phi'(q) (do S) + e (sum k / 4 + q (sum k k^T) / 16)) / normaliser

x = k q^T / 4,  p = causal (1 + x + x^2 / 2) / normaliser,  dx = causal (v do^T + e) (1 + x) / normaliser
dv = p do + phi(k) T^T
dk = dx q / 4 + phi'(k) (v T) + sum e q / 4 + k (sum e q q^T) / 16
"""

import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention import mosaic_launch as gpu
from pallas_kernels.taylor_attention.mosaic_chunk import Chunk, keys_of, squares_product, visible, with_sums
from pallas_kernels.taylor_attention.mosaic_features import KEY_SIZE, Weights
from pallas_kernels.taylor_attention.mosaic_launch import plgpu
from pallas_kernels.taylor_attention.mosaic_plan import PART, State, bf16, f32

STRIP = 32
"""Queries of one product of scores: with 64, addresses would not fit into the registers and be spilled."""


def read_queries(chunk: Chunk, state: State, dq: Any, e_out: Any) -> None:
    """Store the gradient of this warpgroup's queries, and e."""
    program = chunk.program
    starts = chunk.starts(chunk.first) if chunk.plan.packed else None

    def product(columns: Any) -> jax.Array:
        do, y = (gpu.load(chunk.own(name).at[:, columns]).astype(f32) for name in ("do", "y"))
        return do * y

    def constant() -> jax.Array:
        # One half after the other, as in `through_state`.
        half = PART // 2
        e = -jnp.sum(product(pl.ds(0, half)) + product(pl.ds(half, half)), axis=1)
        if chunk.plan.packed:
            e = jnp.where(chunk.real(), e, 0.0)
        gpu.store(e_out.at[program.row, program.share_of_head, pl.ds(chunk.first, PART)], e)
        return e

    q = gpu.load(chunk.own("plain_q"))
    gradient, squares, e = through_state(chunk, "q", q, "do", Weights(), constant)
    gradient = gradient + with_sums(chunk, squares, 1 / 16) * gpu.along_rows(e, KEY_SIZE)
    if starts is not None:
        gradient = jnp.where(gpu.along_rows(starts < chunk.start, KEY_SIZE), gradient, 0.0)

    q = gpu.load(chunk.own("plain_q"))  # again: kept, it would be spilled

    def accumulate(accumulator: Any) -> jax.Array:
        for number, keys in enumerate(keys_of(chunk, program.group)):
            x, dx = gpu.products(
                (q, chunk.at("k", keys.rows).T, PART, chunk.staging()),
                (chunk.own("do"), chunk.at("v", keys.rows).T, PART, None),
                meanwhile=gpu.nothing if number else chunk.write_features,
            )
            dx = (dx + gpu.along_rows(e, PART)) * (1 / 4 + x * (1 / 16))
            dx = jnp.where(visible(keys, starts), dx, 0.0)
            gpu.multiply(accumulator, dx.astype(bf16), chunk.at("k", keys.rows), chunk.staging())
        return accumulator[...]

    gradient = gradient + pl.run_scoped(accumulate, plgpu.ACC((PART, KEY_SIZE), f32))
    gradient = gradient * gpu.along_rows(gpu.load(chunk.own("rden"), gpu.ROW), KEY_SIZE)
    if chunk.plan.packed:
        gradient = jnp.where(gpu.along_rows(chunk.real(), KEY_SIZE), gradient, 0.0)
    store_keys(chunk, gradient, dq)


def through_state(
    chunk: Chunk, name: str, x: jax.Array, u: str, weights: Weights, meanwhile: Callable[[], Any]
) -> tuple[jax.Array, jax.Array, Any]:
    """Return (64, 16), the gradient of x through phi(x) . (u S), and the product of `squares_product`.

    Args:
        meanwhile: called while the first products run; its result is the third one.
    """
    scaled, broadcast = chunk.scaled(x, weights), chunk.broadcast(name, f32)
    kv = chunk.scratch["kv"].at[chunk.zero]
    scaled = features.Scaled(*(part.astype(f32) for part in scaled))

    def run(of_first: Any, of_linear: Any, of_squares: Any, *strips: Any) -> tuple[Any, ...]:
        # One strip after the other, and the narrow products with the last: more at once need registers that
        # are then spilled.
        sums, extra = [], None
        for number, strip in enumerate(strips):
            columns = kv.at[:, pl.ds(number * features.STRIP, features.STRIP)]
            gpu.multiply(strip, chunk.own(u), columns)
            last = number == features.STRIPS - 1
            if last:
                gpu.multiply(of_squares, *itemgetter(0, 1, 3)(squares_product(chunk, x)))
                gpu.multiply(of_linear, chunk.own(u), kv.at[:, pl.ds(features.LINEAR, KEY_SIZE)])
            if number == 0:
                extra = meanwhile()
            gradient = plgpu.wgmma_accumulator_load(strip, wait_n=2 if last else 0)
            shares = features.gradient_shares(number, gradient, scaled).astype(bf16)
            gpu.multiply(of_first, shares, chunk.scratch["factors"].at[number], chunk.staging())
            sums.append(features.gradient_sums(number, gradient, broadcast))
        return of_first[...], of_linear[...], of_squares[...], extra, *sums

    narrow, wide = (plgpu.ACC((PART, columns), f32) for columns in (KEY_SIZE, features.STRIP))
    first, linear, squares, extra, *sums = pl.run_scoped(run, *[narrow] * 3, *[wide] * features.STRIPS)
    gradient = first + features.weighted_gradient(sums[0] + sums[1], sums[2], linear, weights)
    return gradient, squares, extra


def write_factors(program: Any) -> None:
    """Write the constant operands of `through_state` to shared memory, before the first chunk."""

    @pl.when(program.group == 0)
    def _write() -> None:
        row, column = (gpu.iota((PART, KEY_SIZE), axis) for axis in (0, 1))
        for strip in range(features.STRIPS):
            ones = features.first_factors(strip, row, column)
            program.scratch["factors"].at[strip][...] = ones.astype(bf16)


def store_keys(chunk: Chunk, gradient: jax.Array, result: Any) -> None:
    """Store the warpgroup's gradient (64, 16) into a result (parts, B, N, H, 16)."""
    program = chunk.program
    target = (program.part, program.row, pl.ds(chunk.first, PART), program.head)
    gpu.store(result.at[target], gradient.astype(result.dtype))


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


def read_keys(chunk: Chunk, state: State, dk: Any, dv: Any) -> None:
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
    k = gpu.load(chunk.own("plain_k"))  # again: kept, it would be spilled
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
