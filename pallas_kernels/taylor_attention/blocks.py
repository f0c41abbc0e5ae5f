"""Shared code of the Taylor attention kernels: loading tokens, computing features, moving a state.

Letters: C tokens of a chunk, K padded key channels, F features of a tile, V value channels of a tile.
A state is a tuple of tiles, (F, V) or transposed (V, F), and the sums that the normaliser needs:

    moments = sum w x phi_last(x)^T (K, last),   count = sum w

The last tile's features include x and 1, so `moments` holds sum w x x^T and sum w x:
q . z = count + q . sum w x + q^T (sum w x x^T) q / 2, without a sum per feature.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import devices
from pallas_kernels.launch import Packing, dot, inside, load, store
from pallas_kernels.taylor_attention.layout import Layout

f32 = jnp.float32


class State(NamedTuple):
    """Sums over tokens, float32."""

    tiles: tuple[jax.Array, ...]
    moments: jax.Array
    count: jax.Array


@dataclass(frozen=True)
class Variant:
    """Block sizes of one kernel."""

    chunk: int
    """tokens per step of a program"""
    tile: int
    """features per tile of the state; second-order products only"""
    value_tile: int
    """value channels per program, a power of two"""
    warps: int
    stages: int = 1
    """with 3, operands of the next chunk are copied to shared memory during this one; with 2, after it"""
    hoist: bool = True
    """keep the tables of the feature map in shared memory; the largest do not fit"""


@dataclass(frozen=True, kw_only=True)
class Plan(Variant):
    """The sizes of one call, fixed when it is traced."""

    layout: Layout
    batch: int
    length: int
    heads: int
    value_size: int
    block: int
    """tokens per program, a multiple of `chunk`"""
    operand: Any
    """dtype of matmul operands"""
    precision: str | None
    """"highest" for full float32 precision instead of TF32"""
    packed: bool
    """whether segments or padding are given"""

    @property
    def blocks(self) -> int:
        return -(-self.length // self.block)

    @property
    def value_tiles(self) -> int:
        return -(-self.value_size // self.value_tile)

    @property
    def ragged(self) -> bool:
        """Whether the last block extends beyond the sequence."""
        return self.length % self.block != 0

    @property
    def scale(self) -> float:
        """K^(-1/2)."""
        return self.layout.key_size**-0.5

    @property
    def scales(self) -> tuple[float, float]:
        """K^(-1/2) as two factors: of queries before they are rounded to operands, and of products.

        A power of two is exact on queries; other factors would round bfloat16 queries a second time.
        """
        return (self.scale, 1.0) if math.log2(self.scale).is_integer() else (1.0, self.scale)

    def dot(self, a: jax.Array, b: jax.Array, contract: tuple[int, int], into: Any = None) -> jax.Array:
        return dot(a.astype(self.operand), b.astype(self.operand), contract, into, self.precision)


class Chunk:
    """C tokens from `start` on, of one row and head."""

    def __init__(self, plan: Plan, start: Any, packing: Packing | None = None):
        self.plan, self.start = plan, start
        self.end = start + plan.chunk
        self.slice = pl.ds(start, plan.chunk)
        self.index = start + jnp.arange(plan.chunk)
        self._packing = packing
        self._stored = self.index < plan.length if plan.ragged else None
        self.real = self._stored if packing is None else self.index < packing.count[...]
        """(C,) or None for all: padding is loaded as zeros"""
        # Load before the chunk's first store, which no load may pass: at its use each would be waited for.
        self.last_start: Any = None if packing is None else self._start_at(self.end - 1)
        """start of the last token's segment; packed calls only"""
        self.next_start: Any = None if packing is None else self._start_at(self.end)
        """start of the next token's segment, after the end: the last token's; packed calls only"""

    def keys(self, ref: Any) -> jax.Array:
        """Return (C, K) of a (N, K) ref in the operands' dtype, zeros in padding and in extra channels."""
        return self._rows(ref, self.plan.layout.key_size, self.plan.layout.padded_key_size, 0)

    def queries(self, ref: Any) -> jax.Array:
        """Return (C, K) as `keys`, times the first of the plan's `scales`."""
        before, _ = self.plan.scales
        keys = self.keys(ref)
        return keys if before == 1 else (keys.astype(f32) * before).astype(self.plan.operand)

    def values(self, ref: Any, tile: Any) -> jax.Array:
        """Return (C, V) of value tile number `tile`."""
        return self._rows(ref, self.plan.value_size, self.plan.value_tile, tile)

    def numbers(self, ref: Any) -> jax.Array:
        """Return (C,) of a (N,) ref, 0 in padding."""
        return load(ref, (self.slice,), self.real)

    def _rows(self, ref: Any, size: int, padded: int, tile: Any) -> jax.Array:
        valid = inside(self.real, size, padded, tile)
        return load(ref, (self.slice, slice(None)), valid).astype(self.plan.operand)

    def put_keys(self, ref: Any, value: jax.Array) -> None:
        """Store (C, K) into a (N, K) ref."""
        layout = self.plan.layout
        valid = inside(self._stored, layout.key_size, layout.padded_key_size, 0)
        store(ref, (self.slice, slice(None)), value, valid)

    def put_values(self, ref: Any, value: jax.Array, tile: Any) -> None:
        """Store (C, V) into a (N, V) ref."""
        valid = inside(self._stored, self.plan.value_size, self.plan.value_tile, tile)
        store(ref, (self.slice, slice(None)), value, valid)

    def put_numbers(self, ref: Any, value: jax.Array, valid: Any) -> None:
        """Store (C,) into a (N,) ref where the scalar `valid` is True."""
        store(ref, (self.slice,), value, valid if self._stored is None else self._stored & valid)

    def starts(self) -> jax.Array:
        """Return (C,) the starts of the tokens' segments; packed calls only."""
        assert self._packing is not None
        return load(self._packing.starts, (self.slice,), self._stored)

    def _start_at(self, token: Any) -> jax.Array:
        assert self._packing is not None
        return self._packing.starts[jnp.minimum(token, self.plan.length - 1)]

    def entering(self, k: jax.Array, v: jax.Array) -> tuple[Any, jax.Array, jax.Array, Any]:
        """Return the terms of the state after the chunk.

        Returns:
            Whether the state before the chunk is kept (None: yes), keys and values with zeros in place of
            those of earlier segments, and the number of remaining keys.
        """
        if self._packing is None:
            count = jnp.minimum(self.plan.length - self.start, self.plan.chunk) if self.plan.ragged else None
            return None, k, v, float(self.plan.chunk) if count is None else jnp.maximum(count, 0).astype(f32)
        start = self.last_start
        kept = (self.index >= start)[:, None]
        k, v = jnp.where(kept, k, jnp.zeros_like(k)), jnp.where(kept, v, jnp.zeros_like(v))
        count = jnp.minimum(self._packing.count[...], self.end) - jnp.maximum(self.start, start)
        return start < self.start, k, v, jnp.maximum(count, 0).astype(f32)

    def leaving(self, dn: jax.Array, dd: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """Return the terms of the sums over the queries from this chunk on, for the keys before it.

        Returns:
            Whether the sums after the chunk are kept (None: yes), and the gradients dn (C, V), dd (C,) with
            zeros for queries that see nothing before the chunk.
        """
        if self._packing is None:
            return None, dn, dd
        sees = self.starts() < self.start
        dn, dd = jnp.where(sees[:, None], dn, jnp.zeros_like(dn)), jnp.where(sees, dd, 0.0)
        return self.next_start < self.start, dn, dd


class Features:
    """phi and its gradient, tile by tile, from the tables in the kernel's refs.

    `columns` are R, T as (K, size); `rows` the same transposed; `scale` is a remaining factor of x. The
    offsets r, t are not loaded: a comparison of a feature's index, which is mostly known at compile time,
    takes no registers.
    """

    def __init__(self, plan: Plan, columns: Any, rows: Any, scale: float = 1.0):
        self.plan, self.scale = plan, scale
        self._refs = {"columns": columns, "rows": rows}
        self._shift: Any = 0
        # The first feature is a product of the first channels: R is 0 at the last one.
        zero = (plan.layout.padded_key_size - 1, 0)
        self._zero = None if plan.hoist else columns[0][zero].astype(jnp.int32)
        # Load once, before the loop over chunks: in the loop each use costs a copy and a barrier.
        self._hoisted = {}
        if plan.hoist:
            tiles = range(plan.layout.pure + 1)
            self._hoisted = {(side, i): self._load(side, i) for side in self._refs for i in tiles}

    def at(self, step: Any) -> "Features":
        """Return the features for use in iteration `step` of a loop.

        Tables that are not hoisted are read from an address that the compiler cannot prove to be constant:
        otherwise it would load them before the loop, into more registers than there are.
        """
        if self._zero is None:
            return self
        features = copy.copy(self)
        features._shift = self._zero * step
        return features

    def _load(self, side: str, tile: int) -> tuple[jax.Array, ...]:
        first, size = self.plan.layout.tiles[tile]
        rows = pl.ds(first + self._shift, size)
        index = (slice(None), rows) if side == "columns" else (rows, slice(None))
        return tuple(ref[index] for ref in self._refs[side])

    def _tables(self, side: str, tile: int) -> tuple[jax.Array, ...]:
        """Return R and T of a tile: (K, F) as "columns", (F, K) as "rows"."""
        return self._hoisted.get((side, tile)) or self._load(side, tile)

    def _of_last(self, linear: float, others: Any) -> jax.Array:
        """Return (1, last) numbers for the features of the last tile, 1 for the constant."""
        feature = jnp.arange(self.plan.layout.last)[None, :]
        first, end = self.plan.layout.first_linear, self.plan.layout.constant_column
        others = jnp.where((feature >= first) & (feature < end), linear, others)
        return jnp.where(feature == end, 1, others).astype(f32)

    def _scaled(self, phi: jax.Array, tile: int) -> jax.Array:
        """Return (C, F) features or their gradients times `scale` to the order of each."""
        if self.scale == 1:
            return phi
        if tile < self.plan.layout.pure:
            return phi * self.scale**2
        return phi * self._of_last(self.scale, self.scale**2)

    def factors(self, x: jax.Array, tile: int) -> tuple[jax.Array, jax.Array]:
        """Return (C, F) x R + r and x T + t."""
        one, two = (self.plan.dot(x, table, (1, 0)) for table in self._tables("columns", tile))
        if tile == self.plan.layout.pure:
            # R and T are 0 where r and t are 1.
            feature = jnp.arange(self.plan.layout.last)[None, :]
            first, end = self.plan.layout.first_linear, self.plan.layout.constant_column
            one = jnp.where(feature == end, 1.0, one)
            two = jnp.where((feature >= first) & (feature <= end), 1.0, two)
        return one, two

    def by_token(self, x: jax.Array, tile: int) -> jax.Array:
        """Return (C, F) phi(x)."""
        return self.product(self.factors(x, tile), tile)

    def product(self, factors: Any, tile: int) -> jax.Array:
        """Return (C, F) phi(x) from its `factors`."""
        return self._scaled(factors[0] * factors[1], tile)

    def by_feature(self, x: jax.Array, tile: int) -> jax.Array:
        """Return (F, C) phi(x)^T of a pure tile."""
        one, two = (self.plan.dot(table, x, (1, 1)) for table in self._tables("rows", tile))
        return self._scaled(one * two, tile)

    def gradient(self, factors: Any, tile: int, dphi: jax.Array, into: Any) -> jax.Array:
        """Return (C, K) gradient of x from dphi (C, F), added onto `into`."""
        (one, two), (one_table, two_table) = factors, self._tables("columns", tile)
        dphi = self._scaled(dphi, tile)
        into = self.plan.dot(dphi * two, one_table, (1, 1), into)
        return self.plan.dot(dphi * one, two_table, (1, 1), into)

    def normaliser(self, state: "State", x: jax.Array, phi_last: jax.Array) -> jax.Array:
        """Return (C,) q . z of queries x with features phi_last (C, last)."""
        read = self.plan.dot(x, state.moments * self._of_last(0.5, 0.0), (1, 0))
        read = read if self.scale == 1 else read * self.scale
        return jnp.sum(read * phi_last, axis=1) + state.count

    def normaliser_gradient(self, state: "State", phi_last: jax.Array) -> jax.Array:
        """Return (C, K) sum w x + (sum w x x^T) x: the gradient of q . z per unit of weight."""
        gradient = self.plan.dot(phi_last, state.moments * self._of_last(1.0, 0.0), (1, 1))
        return gradient if self.scale == 1 else gradient * self.scale


def is_transposed(plan: Plan, tile: int) -> bool:
    """Return whether a tile is stored as (V, F): tensor cores need 64 rows in a matmul's result."""
    return tile == plan.layout.pure or plan.layout.tile < 64


def read_tile(plan: Plan, state: State, tile: int, x: jax.Array, into: Any) -> jax.Array:
    """Return (C, V) x S of phi(x) (C, F)."""
    return plan.dot(x, state.tiles[tile], (1, 1 if is_transposed(plan, tile) else 0), into)


def tile_gradient(plan: Plan, state: State, tile: int, u: jax.Array) -> jax.Array:
    """Return (C, F) u S^T of u (C, V)."""
    return plan.dot(u, state.tiles[tile], (1, 0 if is_transposed(plan, tile) else 1))


def first_state(plan: Plan, refs: Any, tile: Any = 0) -> State:
    """Load a state from (size, V) and (K + 1, last) refs; None for an empty one."""
    k = plan.layout.padded_key_size
    if refs is not None:
        kv_ref, moments_ref = refs
        valid = inside(None, plan.value_size, plan.value_tile, tile)
        tiles = [load(kv_ref, (pl.ds(first, size), slice(None)), valid) for first, size in plan.layout.tiles]
        tiles = [part.T if is_transposed(plan, i) else part for i, part in enumerate(tiles)]
        return State(tuple(tiles), moments_ref[pl.ds(0, k), :], moments_ref[k, 0])
    tiles = [
        jnp.zeros((plan.value_tile, size) if is_transposed(plan, i) else (size, plan.value_tile), f32)
        for i, (_, size) in enumerate(plan.layout.tiles)
    ]
    return State(tuple(tiles), jnp.zeros((k, plan.layout.last), f32), jnp.zeros((), f32))


def store_state(plan: Plan, state: State, refs: Any, tile: Any) -> None:
    """Store a state into (size, V) and (K + 1, last) refs."""
    kv_ref, moments_ref = refs
    valid = inside(None, plan.value_size, plan.value_tile, tile)
    for i, ((first, size), part) in enumerate(zip(plan.layout.tiles, state.tiles, strict=True)):
        part = part.T if is_transposed(plan, i) else part
        store(kv_ref, (pl.ds(first, size), slice(None)), part, valid)
    k = plan.layout.padded_key_size
    moments_ref[pl.ds(0, k), :] = state.moments
    moments_ref[k, :] = jnp.full((plan.layout.last,), state.count, f32)


def add_tokens(
    plan: Plan, features: Features, state: State, stays: Any, x: Any, u: Any, weight: Any, count: Any
) -> State:
    """Add phi(x) u^T and the moments of x, weighted by `weight` (C,) or not (None), to the state.

    If `stays` is False (None is True), add to an empty state instead. A zero row in u adds nothing to the
    tiles, a zero row in x (or a zero weight) nothing to the moments: this excludes tokens.
    """
    tiles, state = [], only_if(stays, state)
    for i, into in enumerate(state.tiles[:-1]):
        if is_transposed(plan, i):
            tiles.append(plan.dot(u, features.by_token(x, i), (0, 0), into))  # (V, C) (C, F)
        else:
            tiles.append(plan.dot(features.by_feature(x, i), u, (1, 0), into))  # (F, C) (C, V)
    phi_last = features.by_token(x, len(tiles))
    tiles.append(plan.dot(u, phi_last, (0, 0), state.tiles[-1]))
    if weight is not None:
        weight = weight if features.scale == 1 else weight * features.scale
        phi_last = phi_last * weight[:, None]  # not x: each warp would multiply all of it
    return State(tuple(tiles), plan.dot(x, phi_last, (0, 0), state.moments), state.count + count)


def only_if(condition: Any, state: State) -> State:
    """Return the state, or an empty one; None is True."""
    if condition is None:
        return state
    gpu = devices.current()
    if gpu is not None and (gpu.capability or "").startswith("10."):
        # Blackwell's Triton fails to compile a matmul onto a selection ("'arith.xori' op requires the same
        # type", jax 0.11 and 0.12). The cost: a segment that overflowed passes NaN to the next one.
        return jax.tree.map(lambda x: x * condition.astype(f32), state)
    return jax.tree.map(lambda x: jnp.where(condition, x, 0.0), state)
