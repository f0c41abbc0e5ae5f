"""The outputs of one chunk in a program of the Mosaic kernels.

x = q k^T / 4,  p = causal (1 + x + x^2 / 2)
y = (p v + phi(q) S^T) / (rowsum(p) + q . z + eps),  q . z = n + q . (sum k) / 4 + q (sum k k^T) q^T / 32
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
from pallas_kernels.taylor_attention.mosaic_features import KEY_SIZE
from pallas_kernels.taylor_attention.mosaic_launch import plgpu
from pallas_kernels.taylor_attention.mosaic_plan import PART, State, bf16, f32


class Keys(NamedTuple):
    """64 keys of a chunk: their slice, the index of the first one in the row, and a function that returns
    which of them a query sees, (64, 64) or one boolean for all."""

    rows: Any
    first: Any
    visible: Any


def keys_of(chunk: Chunk, group: Any) -> list[Keys]:
    """Return the first 64 keys (visible to the second warpgroup only), and the own keys of this `group`."""
    shape = (PART, PART)
    return [
        Keys(pl.ds(0, PART), chunk.start, lambda: group == 1),
        Keys(chunk.program.rows, chunk.first, lambda: gpu.iota(shape, 1) + chunk.zero <= gpu.iota(shape, 0)),
    ]


def visible(keys: Keys, starts: Any) -> Any:
    """Return which of the keys the warpgroup's queries see; `starts` of their segments are (64,) or None."""
    if starts is None:
        return keys.visible()
    return keys.visible() & (gpu.iota((PART, PART), 1) >= gpu.along_rows(starts - keys.first, PART))


def squares_product(chunk: Chunk, x: jax.Array) -> tuple[Any, Any, int, Any]:
    """Return the factors of x (sum x' x'^T), (64, 16), from the moments."""
    return x, chunk.scratch["rounded"].at[features.SQUARES], KEY_SIZE, chunk.staging()


def with_sums(chunk: Chunk, squares: jax.Array, second: float) -> jax.Array:
    """Return (64, 16) (sum x') / 4 + `second` x (sum x' x'^T), from the moments and `squares_product`."""
    sums = gpu.load(chunk.scratch["moments"].at[features.SUMS], gpu.COLUMN)
    first = lax.broadcast_in_dim(sums, (PART, KEY_SIZE), (1,)) * (1 / 4)
    return squares * second + first


def read(chunk: Chunk, state: State, y: Any, rden: Any) -> None:
    """Store the outputs of this warpgroup's queries, and their reciprocal normalisers."""
    for group in range(gpu.THREADS):
        # A branch for each warpgroup, since the first one does not need the scores that it would mask.
        keys = keys_of(chunk, group)[1 - group :]
        pl.when(chunk.program.group == group)(functools.partial(_read, chunk, state, y, rden, keys))


def _read(chunk: Chunk, state: State, y: Any, rden: Any, parts: list[Keys]) -> None:
    """Store the outputs, with the scores of these keys of the chunk."""
    program = chunk.program
    q = gpu.load(chunk.own("plain_q"))
    starts = chunk.starts(chunk.first) if chunk.plan.packed else None
    *scores, squares = gpu.products(
        *((q, chunk.at("k", keys.rows).T, PART, chunk.staging()) for keys in parts), squares_product(chunk, q)
    )
    weights = [_weights(x, visible(keys, starts)) for x, keys in zip(scores, parts, strict=True)]
    normaliser = jnp.sum(q.astype(f32) * with_sums(chunk, squares, 1 / 32), axis=1) + state.count
    sees = None if starts is None else starts < chunk.start
    if sees is not None:
        normaliser = jnp.where(sees, normaliser, 0.0)
    for _, total in weights:
        normaliser = normaliser + total
    reciprocal = 1 / (normaliser + chunk.plan.eps)

    def accumulate(accumulator: Any) -> jax.Array:
        for keys, (p, _) in zip(parts, weights, strict=True):
            gpu.multiply(accumulator, p, chunk.at("v", keys.rows), chunk.staging())
        weight = None if sees is None else sees.astype(f32).astype(bf16)
        phi = chunk.features("q", chunk.scaled(q, features.Weights()), weight)
        gpu.multiply(accumulator, phi, chunk.scratch["kv"].at[chunk.zero].T, chunk.staging())
        chunk.write_features()
        return accumulator[...]

    numerator = pl.run_scoped(accumulate, plgpu.ACC((PART, PART), f32))
    result = numerator * gpu.along_rows(reciprocal, PART)
    if chunk.plan.packed:
        real = chunk.real()
        result = jnp.where(gpu.along_rows(real, PART), result, 0.0)
        reciprocal = jnp.where(real, reciprocal, 0.0)
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    chunk.scratch["values_out"].at[program.group][...] = result.astype(bf16)
    plgpu.commit_smem()
    tokens = pl.ds(chunk.first, PART)
    target = (program.row, tokens, program.head, program.values)
    plgpu.copy_smem_to_gmem(chunk.scratch["values_out"].at[program.group], y.at[target])

    @pl.when(program.part == 0)
    def _normalisers() -> None:
        gpu.store(rden.at[program.row, program.head, tokens], reciprocal)


def _weights(x: jax.Array, sees: Any) -> tuple[jax.Array, jax.Array]:
    """Return weights p of 64 of the chunk's keys, (64, 64) bfloat16, and their sums before rounding."""
    p = jnp.where(sees, 1 + x * (1 / 4 + x * (1 / 32)), 0.0)  # of x / 4
    return p.astype(bf16), jnp.sum(p, axis=1)
