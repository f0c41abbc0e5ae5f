"""The queries' gradient of one chunk in a program of the Mosaic kernels.

e = -do . y,  dx = causal (do v^T + e) (1 + x),  x = q k^T / 4
dq = (dx k / 4 + phi'(q) (do S) + e (sum k / 4 + q (sum k k^T) / 16)) / normaliser
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention import mosaic_launch as gpu
from pallas_kernels.taylor_attention.mosaic_chunk import Chunk
from pallas_kernels.taylor_attention.mosaic_features import KEY_SIZE, Weights
from pallas_kernels.taylor_attention.mosaic_launch import plgpu
from pallas_kernels.taylor_attention.mosaic_outputs import keys_of, squares_product, visible, with_sums
from pallas_kernels.taylor_attention.mosaic_plan import PART, State, bf16, f32


def read(chunk: Chunk, state: State, dq: Any, e_out: Any) -> None:
    """Store the gradient of this warpgroup's queries, and e."""
    program = chunk.program
    starts = chunk.starts(chunk.first) if chunk.plan.packed else None

    def constant() -> jax.Array:
        e = -jnp.sum(gpu.load(chunk.own("do")).astype(f32) * gpu.load(chunk.own("y")).astype(f32), axis=1)
        if chunk.plan.packed:
            e = jnp.where(chunk.real(), e, 0.0)
        gpu.store(e_out.at[program.row, program.share_of_head, pl.ds(chunk.first, PART)], e)
        return e

    q = gpu.load(chunk.own("plain_q"))
    gradient, squares, e = through_state(chunk, "q", q, "do", Weights(), constant)
    gradient = gradient + with_sums(chunk, squares, 1 / 16) * gpu.along_rows(e, KEY_SIZE)
    if starts is not None:
        gradient = jnp.where(gpu.along_rows(starts < chunk.start, KEY_SIZE), gradient, 0.0)

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
        # One strip after the other: two at once need registers that are then spilled.
        sums, extra = [], None
        for number, strip in enumerate(strips):
            columns = kv.at[:, pl.ds(number * features.STRIP, features.STRIP)]
            gpu.multiply(strip, chunk.own(u), columns)
            if number == 0:
                gpu.multiply(of_squares, *itemgetter(0, 1, 3)(squares_product(chunk, x)))
                gpu.multiply(of_linear, chunk.own(u), kv.at[:, pl.ds(features.LINEAR, KEY_SIZE)])
                extra = meanwhile()
            gradient = plgpu.wgmma_accumulator_load(strip, wait_n=0 if number else 2)
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
