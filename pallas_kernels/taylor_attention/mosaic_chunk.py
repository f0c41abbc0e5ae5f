"""One chunk in a program of the Mosaic kernels: its tokens, features, sum into the state, and outputs.

S += u^T phi(x),  moments += [.. x 1]^T x      of keys x = k, u = v
                  moments += [.. x 1]^T (e q)  of queries x = q / normaliser, u = do, e = -do . y

x = q k^T / 4,  p = causal (1 + x + x^2 / 2)
y = (p v + phi(q) S^T) / (rowsum(p) + q . z + eps),  q . z = n + q . (sum k) / 4 + q (sum k k^T) q^T / 32
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import is_interpreted
from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention import mosaic_launch as gpu
from pallas_kernels.taylor_attention.mosaic_features import COLUMNS, KEY_SIZE
from pallas_kernels.taylor_attention.mosaic_launch import plgpu
from pallas_kernels.taylor_attention.mosaic_plan import CHUNK, KEYS, PART, WRITTEN, State, bf16, f32


class Chunk:
    """128 tokens of a running program."""

    def __init__(self, program: Any, number: Any, stage: Any, zero: Any):
        self.program, self.plan, self.scratch = program, program.plan, program.scratch
        self.stage, self.zero = stage, zero
        self.start = program.first_token + number * CHUNK + zero
        """the index of its first token in the row; with `zero`, no address is computed ahead and spilled"""
        self.first = self.start + program.group * PART
        """index of the warpgroup's first token"""
        plgpu.barrier_wait(self.scratch["arrived"].at[stage])
        if self.plan.packed:
            self.count = program.sources["counts"][program.row]
            self._clear_padding()

    def _clear_padding(self) -> None:
        """Set padding to zeros: its weights are zeros, but zero times NaN is NaN."""
        side = self.program.side

        @pl.when(self.count < self.start + CHUNK)
        def _clear() -> None:
            for name in (side.x, f"plain_{side.x}", side.u):
                tokens = self.own(name)
                real = gpu.along_rows(self.real(), tokens.shape[1])
                tokens[...] = jnp.where(real, gpu.load(tokens), jnp.zeros((), bf16))
            self.program.synchronise(WRITTEN)

    def own(self, name: str) -> Any:
        """Return the ref of the warpgroup's tokens of an input."""
        return self.scratch[name].at[self.stage, self.program.rows]

    def at(self, name: str, rows: Any) -> Any:
        """Return the ref of tokens of an input."""
        return self.scratch[name].at[self.stage, rows]

    def real(self) -> jax.Array:
        """Return (64,), which of the warpgroup's tokens are no padding; packed calls only."""
        return self.first + gpu.rows_iota(PART) < self.count

    def starts(self, first: Any, count: int = PART, layout: Any = gpu.ROW) -> jax.Array:
        """Return (count,) starts of the segments of the tokens from `first` on; packed calls only."""
        return gpu.load(self.program.sources["starts"].at[self.program.row, pl.ds(first, count)], layout)

    def staging(self) -> Any:
        return self.scratch["staging"].at[self.program.group] if is_interpreted() else None

    def scaled(self, x: jax.Array, weights: features.Weights) -> features.Scaled:
        return features.weighted(x, gpu.iota((PART, KEY_SIZE), 1), weights)

    def broadcast(self, name: str, dtype: Any = bf16) -> Callable[[int, int], jax.Array]:
        """Return `features.by_token`'s `broadcast` for the warpgroup's tokens of an input."""
        plain = self.scratch[f"plain_{name}"]

        def column(channel: int, width: int) -> jax.Array:
            x = gpu.load(plain.at[self.stage, self.program.rows, channel], gpu.ROW)
            return gpu.along_rows(x.astype(dtype), width)

        return column

    def features(self, name: str, x: features.Scaled, weight: Any = None) -> jax.Array:
        """Return (64, 224) features of the warpgroup's tokens, times `weight` (64,) bfloat16 or nothing."""
        constant = jnp.where(gpu.iota((PART, KEY_SIZE), 1) == 0, 1.0, 0.0).astype(bf16)
        if weight is not None:
            # Multiply one factor of the slabs: fewer instructions than for each feature.
            factor = gpu.along_rows(weight, KEY_SIZE)
            x, constant = features.Scaled(*(part * factor for part in x)), constant * factor
        return features.by_token(x, self.broadcast(name), constant)

    def write_features(self) -> None:
        """Write what `add` needs of the warpgroup's tokens to shared memory; once, while products run."""
        program, side = self.program, self.program.side
        counted, _ = self._entering() if side is KEYS else self._leaving()
        x = gpu.load(self.own(side.x))
        weight = None if counted is None else counted.astype(f32).astype(bf16)
        if side is KEYS:
            scaled = self.scaled(x, features.NO_WEIGHTS)
        else:
            e, rden = (gpu.load(self.own(name), gpu.ROW) for name in ("e", "rden"))
            self.scratch["weighted"].at[self.zero, program.rows][...] = times(x, e)
            rden = rden if counted is None else jnp.where(counted, rden, 0.0)
            weight, scaled = rden.astype(bf16), self.scaled(x, features.Weights())
        self.scratch["phi"].at[self.zero, program.rows][...] = self.features(side.x, scaled, weight)

    def add(self, state: State) -> State:
        """Return the state after the chunk; before it, for queries."""
        program, phi = self.program, self.scratch["phi"].at[self.zero]
        side = program.side
        _, stays = self._entering() if side is KEYS else self._leaving()
        program.synchronise(WRITTEN)
        before = state.kv if stays is None else jnp.where(stays, state.kv, 0.0)
        u = self.scratch[side.u].at[self.stage].T

        @functools.partial(gpu.add_product, before, u, phi.at[:, program.share])
        def kv() -> None:
            pl.when(program.group == 0)(lambda: self._add_moments(phi, stays))

        count = self._count(state.count, stays) if side is KEYS else state.count
        return program.published(State(kv, count, state.rounds + 1))

    def _add_moments(self, phi: Any, stays: Any) -> None:
        before = gpu.load(self.scratch["moments"])
        if stays is not None:
            before = jnp.where(stays, before, 0.0)
        last = phi.at[:, pl.ds(COLUMNS - features.ROWS, features.ROWS)]
        if self.program.side is KEYS:
            x = phi.at[:, pl.ds(COLUMNS - 2 * KEY_SIZE, KEY_SIZE)]
        else:
            x = self.scratch["weighted"].at[self.zero]
        self.program.keep_moments(gpu.add_product(before, last.T, x))

    def _segment(self) -> Any:
        """Return the start of the segment of the chunk's last token."""
        return self.program.sources["starts"][self.program.row, self.start + CHUNK - 1]

    def next_segment(self) -> Any:
        """Return the start of the segment of the token after the chunk, of the last one if there is none."""
        token = jnp.minimum(self.start + CHUNK, self.plan.length - 1)
        return self.program.sources["starts"][self.program.row, token]

    def _entering(self) -> tuple[Any, Any]:
        """Return which keys enter the state, (64,), and whether the old state is kept; None: all, yes."""
        if not self.plan.packed:
            return None, None
        index, segment = self.first + gpu.rows_iota(PART), self._segment()
        return (index >= segment) & self.real(), segment < self.start

    def _leaving(self) -> tuple[Any, Any]:
        """Return which queries see tokens before the chunk, (64,), and whether any after it does."""
        if not self.plan.packed:
            return None, None
        return self.starts(self.first) < self.start, self.next_segment() < self.start

    def _count(self, count: Any, stays: Any) -> Any:
        if stays is None:
            return count + CHUNK
        segment = self._segment()
        entering = jnp.minimum(self.count, self.start + CHUNK) - jnp.maximum(self.start, segment)
        return jnp.where(stays, count, 0.0) + jnp.maximum(entering, 0).astype(f32)


def times(x: jax.Array, factors: jax.Array) -> jax.Array:
    """Return x (64, n) bfloat16 times one float32 factor per row, rounded once."""
    return (x.astype(f32) * gpu.along_rows(factors, x.shape[1])).astype(x.dtype)


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
