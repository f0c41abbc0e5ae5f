"""Process one chunk in a program of the Mosaic kernels: read the state, then add to it.

x = q k^T / 4,  p = causal (1 + x + x^2 / 2)
y = (p v + phi(q) S^T) / (rowsum(p) + q . z + eps),  q . z = n + q . (sum k) / 4 + q (sum k k^T) q^T / 32
S += v^T phi(k),  moments += [.. k 1]^T k
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import is_interpreted
from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention.mosaic_features import COLUMNS, KEY_SIZE
from pallas_kernels.taylor_attention.mosaic_launch import (
    COLUMN,
    ROW,
    add_product,
    along_rows,
    iota,
    load,
    multiply,
    plgpu,
    product,
    rows_iota,
    store,
)
from pallas_kernels.taylor_attention.mosaic_plan import CHUNK, PART, STAGES, WRITTEN, State, bf16, f32


class Keys(NamedTuple):
    """64 keys of a chunk: their slice, the index of the first one in the row, and a function that returns
    which of them a query sees, (64, 64) or one boolean for all."""

    rows: Any
    first: Any
    visible: Any


class Chunk:
    """128 tokens of a running program."""

    def __init__(self, program: Any, number: Any, zero: Any):
        self.program, self.plan, self.scratch = program, program.plan, program.scratch
        self.zero = zero
        self.stage = lax.rem(number, STAGES)
        self.start = program.block * self.plan.block + number * CHUNK
        """the index of its first token in the row"""
        self.first = self.start + program.group * PART
        """index of the warpgroup's first token"""
        plgpu.barrier_wait(self.scratch["arrived"].at[self.stage])
        if self.plan.packed:
            self.count = program.tokens.counts[program.row]
            self._clear_padding()

    def _clear_padding(self) -> None:
        """Set padding to zeros: its weights are zeros, but zero times NaN is NaN."""

        @pl.when(self.count < self.start + CHUNK)
        def _clear() -> None:
            for name in ("k", "plain_k", "v"):
                tokens = self.scratch[name].at[self.stage, self.program.rows]
                real = self.first + iota(tokens.shape, 0) < self.count
                tokens[...] = jnp.where(real, load(tokens), jnp.zeros((), bf16))
            self.program.synchronise(WRITTEN)

    def read(self, state: State, y: Any, rden: Any) -> None:
        """Store the outputs of this warpgroup's queries, and their reciprocal normalisers."""
        program, at = self.program, (self.stage, self.program.rows)
        q = load(self.scratch["plain_q"].at[at])
        starts = None
        if self.plan.packed:
            starts = load(program.tokens.starts.at[program.row, pl.ds(self.first, PART)], ROW)
        parts = self._keys()
        scores = [self._scores(q, keys, starts) for keys in parts]
        normaliser = self._state_normaliser(q, state.count)
        sees = None if starts is None else starts < self.start
        if sees is not None:
            normaliser = jnp.where(sees, normaliser, 0.0)
        for _, total in scores:
            normaliser = normaliser + total
        reciprocal = 1 / (normaliser + self.plan.eps)

        def accumulate(accumulator: Any) -> jax.Array:
            staging = self._staging()
            for keys, (p, _) in zip(parts, scores, strict=True):
                multiply(accumulator, p, self.scratch["v"].at[self.stage, keys.rows], staging)
            scaled = features.weighted(q, iota((PART, KEY_SIZE), 1))
            phi = self._features(scaled, self.scratch["plain_q"], sees)
            multiply(accumulator, phi, self.scratch["kv"].at[self.zero].T, staging)
            return accumulator[...]

        numerator = pl.run_scoped(accumulate, plgpu.ACC((PART, PART), f32))
        result = numerator * along_rows(reciprocal, PART)
        if self.plan.packed:
            real = self.first + rows_iota(PART) < self.count
            result = jnp.where(along_rows(real, PART), result, 0.0)
            reciprocal = jnp.where(real, reciprocal, 0.0)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        self.scratch["y"].at[program.group][...] = result.astype(bf16)
        plgpu.commit_smem()
        tokens = pl.ds(self.first, PART)
        plgpu.copy_smem_to_gmem(
            self.scratch["y"].at[program.group], y.at[program.row, tokens, program.head, program.values]
        )

        @pl.when(program.part == 0)
        def _normalisers() -> None:
            store(rden.at[program.row, program.head, tokens], reciprocal)

    def _keys(self) -> list[Keys]:
        """Return the first 64 keys (visible to the second warpgroup only), and the warpgroup's own keys."""
        group, shape = self.program.group, (PART, PART)
        return [
            Keys(pl.ds(0, PART), self.start, lambda: group == 1),
            Keys(self.program.rows, self.first, lambda: iota(shape, 1) + self.zero <= iota(shape, 0)),
        ]

    def _staging(self) -> Any:
        return self.scratch["staging"].at[self.program.group] if is_interpreted() else None

    def _scores(self, q: jax.Array, keys: Keys, starts: Any) -> tuple[jax.Array, jax.Array]:
        """Return weights p of 64 of the chunk's keys, (64, 64) bfloat16, and their sums before rounding."""
        x = product(q, self.scratch["k"].at[self.stage, keys.rows].T, PART, self._staging())
        key, visible = iota((PART, PART), 1), keys.visible()
        if starts is not None:
            visible = visible & (key >= along_rows(starts - keys.first, PART))
        p = jnp.where(visible, 1 + x * (1 / 4 + x * (1 / 32)), 0.0)  # of x / 4
        return p.astype(bf16), jnp.sum(p, axis=1)

    def _state_normaliser(self, q: jax.Array, count: Any) -> jax.Array:
        """Return (64,) q . z."""
        squares, sums = (
            self.scratch["rounded"].at[features.SQUARES],
            self.scratch["moments"].at[features.SUMS],
        )
        second = product(q, squares, KEY_SIZE, self._staging()) * (1 / 32)
        first = lax.broadcast_in_dim(load(sums, COLUMN), (PART, KEY_SIZE), (1,)) * (1 / 4)
        return jnp.sum(q.astype(f32) * (second + first), axis=1) + count

    def _features(self, x: features.Scaled, plain: Any, counted: Any) -> jax.Array:
        """Return (64, 224) features of this warpgroup's tokens, 0 unless `counted`; loads from `plain`."""

        def broadcast(channel: int, width: int) -> jax.Array:
            return along_rows(load(plain.at[self.stage, self.program.rows, channel], ROW), width)

        constant = jnp.where(iota((PART, KEY_SIZE), 1) == 0, 1.0, 0.0).astype(bf16)
        if counted is not None:
            # Multiply each factor of the slabs: fewer instructions than a selection for each feature.
            weight = along_rows(counted.astype(f32).astype(bf16), KEY_SIZE)
            x, constant = features.Scaled(*(part * weight for part in x)), constant * weight
        return features.by_token(x, broadcast, constant)

    def add(self, state: State) -> State:
        """Return the state after the chunk."""
        program, phi = self.program, self.scratch["phi"].at[self.zero]
        k = load(self.scratch["k"].at[self.stage, program.rows])
        kept, stays = self._entering()
        keys = self._features(features.Scaled(k, k, k), self.scratch["plain_k"], kept)
        phi.at[program.rows][...] = keys
        program.synchronise(WRITTEN)

        before = state.kv if stays is None else jnp.where(stays, state.kv, 0.0)
        kv = add_product(before, self.scratch["v"].at[self.stage].T, phi.at[:, program.share])
        pl.when(program.group == 0)(lambda: self._add_moments(phi, stays))
        return program.published(State(kv, self._count(state.count, stays), state.rounds + 1))

    def _add_moments(self, phi: Any, stays: Any) -> None:
        before = load(self.scratch["moments"])
        if stays is not None:
            before = jnp.where(stays, before, 0.0)
        last = phi.at[:, pl.ds(COLUMNS - features.ROWS, features.ROWS)]
        keys = phi.at[:, pl.ds(COLUMNS - 2 * KEY_SIZE, KEY_SIZE)]
        self.program.keep_moments(add_product(before, last.T, keys))

    def _segment(self) -> Any:
        """Return the start of the segment of the chunk's last token."""
        return self.program.tokens.starts[self.program.row, self.start + CHUNK - 1]

    def _entering(self) -> tuple[Any, Any]:
        """Return which keys enter the state, (64,), and whether the old state is kept; None: all, yes."""
        if not self.plan.packed:
            return None, None
        index, segment = self.first + rows_iota(PART), self._segment()
        return (index >= segment) & (index < self.count), segment < self.start

    def _count(self, count: Any, stays: Any) -> Any:
        if stays is None:
            return count + CHUNK
        entering = jnp.minimum(self.count, self.start + CHUNK) - jnp.maximum(self.start, self._segment())
        return jnp.where(stays, count, 0.0) + jnp.maximum(entering, 0).astype(f32)
