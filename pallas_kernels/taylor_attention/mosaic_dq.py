"""The queries' gradient of one chunk in a program of the Mosaic kernels.

e = -do . y,  dx = causal (do v^T + e) (1 + x),  x = q k^T / 4
dq = (dx k / 4 + phi'(q) (do S) + e (sum k / 4 + q (sum k k^T) / 16)) / normaliser
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention.mosaic_chunk import Chunk
from pallas_kernels.taylor_attention.mosaic_features import KEY_SIZE, Weights
from pallas_kernels.taylor_attention.mosaic_launch import (
    ROW,
    along_rows,
    iota,
    load,
    multiply,
    plgpu,
    product,
    products,
    store,
)
from pallas_kernels.taylor_attention.mosaic_outputs import keys_of, moments_product, visible
from pallas_kernels.taylor_attention.mosaic_plan import PART, State, bf16, f32


def read(chunk: Chunk, state: State, dq: Any, e_out: Any) -> None:
    """Store the gradient of this warpgroup's queries, and e."""
    program = chunk.program
    e = -jnp.sum(load(chunk.own("do")).astype(f32) * load(chunk.own("y")).astype(f32), axis=1)
    starts = None
    if chunk.plan.packed:
        starts = chunk.starts(chunk.first)
        e = jnp.where(chunk.real(), e, 0.0)
    store(e_out.at[program.row, program.share_of_head, pl.ds(chunk.first, PART)], e)
    q, along = load(chunk.own("plain_q")), along_rows(e, KEY_SIZE)
    gradient = moments_product(chunk, q, 1 / 16) * along
    gradient = gradient + through_state(chunk, "q", q, "do", Weights())
    if starts is not None:
        gradient = jnp.where(along_rows(starts < chunk.start, KEY_SIZE), gradient, 0.0)

    def accumulate(accumulator: Any) -> jax.Array:
        for keys in keys_of(chunk):
            x, dx = products(
                (q, chunk.at("k", keys.rows).T, PART, chunk.staging()),
                (chunk.own("do"), chunk.at("v", keys.rows).T, PART, None),
            )
            dx = (dx + along_rows(e, PART)) * (1 / 4 + x * (1 / 16))
            dx = jnp.where(visible(keys, starts), dx, 0.0)
            multiply(accumulator, dx.astype(bf16), chunk.at("k", keys.rows), chunk.staging())
        return accumulator[...]

    gradient = gradient + pl.run_scoped(accumulate, plgpu.ACC((PART, KEY_SIZE), f32))
    gradient = gradient * along_rows(load(chunk.own("rden"), ROW), KEY_SIZE)
    if chunk.plan.packed:
        gradient = jnp.where(along_rows(chunk.real(), KEY_SIZE), gradient, 0.0)
    store_keys(chunk, gradient, dq)


def through_state(chunk: Chunk, name: str, x: jax.Array, u: str, weights: Weights) -> jax.Array:
    """Return (64, 16), the gradient of x through phi(x) . (u S)."""
    scaled, broadcast = chunk.scaled(x, weights), chunk.broadcast(name, f32)
    kv = chunk.scratch["kv"].at[chunk.zero]
    scaled = features.Scaled(*(part.astype(f32) for part in scaled))

    def start(accumulator: Any, strip: int) -> None:
        multiply(accumulator, chunk.own(u), kv.at[:, pl.ds(strip * features.STRIP, features.STRIP)])

    def run(accumulator: Any, *strips: Any) -> tuple[Any, ...]:
        start(strips[0], 0)
        sums = []
        for strip in range(features.STRIPS):
            last = strip + 1 == features.STRIPS
            if not last:
                start(strips[strip + 1], strip + 1)
            # The product of the next strip may still run, and that of the shares of the one before.
            gradient = plgpu.wgmma_accumulator_load(strips[strip], wait_n=(1, 2, 1)[strip])
            shares = features.gradient_shares(strip, gradient, scaled).astype(bf16)
            multiply(accumulator, shares, chunk.scratch["factors"].at[strip], chunk.staging())
            sums.append(features.gradient_sums(strip, gradient, broadcast))
        return accumulator[...], *sums

    narrow, wide = (plgpu.ACC((PART, columns), f32) for columns in (KEY_SIZE, features.STRIP))
    first, *sums = pl.run_scoped(run, narrow, *[wide] * features.STRIPS)
    linear = product(chunk.own(u), kv.at[:, pl.ds(features.LINEAR, KEY_SIZE)], KEY_SIZE)
    return first + features.weighted_gradient(sums[0] + sums[1], sums[2], linear, weights)


def write_factors(program: Any) -> None:
    """Write the constant operands of `through_state` to shared memory, before the first chunk."""

    @pl.when(program.group == 0)
    def _write() -> None:
        row, column = (iota((PART, KEY_SIZE), axis) for axis in (0, 1))
        for strip in range(features.STRIPS):
            ones = features.first_factors(strip, row, column)
            program.scratch["factors"].at[strip][...] = ones.astype(bf16)


def store_keys(chunk: Chunk, gradient: jax.Array, result: Any) -> None:
    """Store the warpgroup's gradient (64, 16) into a result (parts, B, N, H, 16)."""
    program = chunk.program
    target = (program.part, program.row, pl.ds(chunk.first, PART), program.head)
    store(result.at[target], gradient.astype(result.dtype))
