"""Shared code of the window attention kernels: sizes, grid, loading blocks of tokens, visibility.

Arrays keep the caller's layout (B, N, G, R, dim) with R query heads per key head: a program reads its head's
channels of each token. Axes are letters: b row, h key head, r its query head, n token, k key channel, v value
channel. The grid has one axis, heads first, so that neighbouring programs read neighbouring memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.launch import Packing, blocks, dot, inside, launch, load, quotient, remainder, store

f32 = jnp.float32

LOWEST = float(jnp.finfo(f32).min)
"""A score below all others. With -inf a query without visible keys would subtract infinities."""


@dataclass(frozen=True)
class Variant:
    """Block sizes of one kernel, powers of two from 16 on."""

    queries: int
    """queries per block"""
    keys: int
    """keys per block"""
    warps: int
    stages: int = 1


@dataclass(frozen=True, kw_only=True)
class Plan(Variant):
    """The sizes of one call on one device, fixed when it is traced."""

    batch: int
    length: int
    kv_heads: int
    shared: int
    """query heads per key head"""
    key_size: int
    value_size: int
    left: int
    scale: float
    operand: Any
    """dtype of product operands"""
    packed: bool
    """whether segments or padding are given"""

    def spec(self, axes: str, block: int, by_key_head: bool) -> pl.BlockSpec:
        """Return a program's block of an array with these axes: all tokens of one row, its head or heads."""
        # A block may extend beyond the array; masks keep every access inside.
        step = max(self.queries, self.keys)
        sizes = {"n": -(-self.length // step) * step, "r": self.shared if by_key_head else None}
        sizes |= {"k": padded(self.key_size), "v": padded(self.value_size)}

        def at(x: Any) -> dict[str, Any]:
            row, head, shared, _ = self.program_indices(x, block, by_key_head)
            return {"b": row, "h": head, "r": shared}

        return blocks(axes, sizes, at)

    def program_indices(self, x: Any, block: int, by_key_head: bool) -> tuple[Any, Any, Any, Any]:
        """Return row, key head, its query head and block of tokens of a program."""
        shared = 1 if by_key_head else self.shared
        heads, blocks = self.kv_heads * shared, -(-self.length // block)
        head = remainder(x, heads)
        row, number = quotient(x, blocks * heads), remainder(quotient(x, heads), blocks)
        return row, quotient(head, shared), remainder(head, shared), number

    def run(
        self,
        body: Callable[..., None],
        name: str,
        block: int,
        operands: Sequence[jax.Array],
        axes: Sequence[str],
        packing: Sequence[jax.Array],
        results: Sequence[tuple[str, Any]],
        by_key_head: bool = False,
    ) -> tuple[jax.Array, ...]:
        """Launch one program per row, head and block of tokens.

        Args:
            body: takes the first token of its block, the operands' refs, `Packing`, the results' refs.
            block: tokens per program.
            operands, axes, results: arrays, their axes, and axes and dtypes of the results.
            packing: starts (B, N) and counts (B,), or empty.
            by_key_head: whether one program takes all query heads of a key head.
        """
        size = {"b": self.batch, "n": self.length, "h": self.kv_heads, "r": self.shared}
        size |= {"k": self.key_size, "v": self.value_size}
        in_axes = [*axes, *("bn", "b")[: len(packing)]]

        def program(*refs: Any) -> None:
            start = self.program_indices(pl.program_id(0), block, by_key_head)[3] * block
            count = len(operands)
            rest = refs[count:]
            given = Packing(*rest[:2]) if self.packed else None
            body(start, refs[:count], given, rest[2 * self.packed :])

        heads = self.kv_heads * (1 if by_key_head else self.shared)
        return tuple(
            launch(
                program,
                *operands,
                *packing,
                grid=(self.batch * heads * -(-self.length // block),),
                in_specs=[self.spec(names, block, by_key_head) for names in in_axes],
                out_specs=[self.spec(names, block, by_key_head) for names, _ in results],
                out_shape=[jax.ShapeDtypeStruct([size[a] for a in names], dtype) for names, dtype in results],
                warps=self.warps,
                stages=self.stages,
                # The FLOPs of a compiled call follow from its name (`benchmarks.gpu.static.cost`).
                name=f"window_{name}_left{self.left}",
            )
        )

    def dot(self, a: jax.Array, b: jax.Array, contract: tuple[int, int], into: Any = None) -> jax.Array:
        """Return the product, summed in float32; float32 operands keep full precision."""
        return dot(a.astype(self.operand), b.astype(self.operand), contract, into, "highest")


class Block:
    """`size` tokens from `start` on."""

    def __init__(self, plan: Plan, start: Any, size: int, packing: Packing | None):
        self.plan, self.slice = plan, pl.ds(start, size)
        self.index = start + jnp.arange(size, dtype=jnp.int32)
        self._stored = self.index < plan.length if plan.length % size else None
        self.real = self._stored if packing is None else self.index < packing.count[...]
        """(size,) or None for all; padding is loaded as zeros"""
        self._packing = packing

    def load(self, ref: Any, width: int, *head: Any) -> jax.Array:
        """Return (size, padded width) of a (N, ..., width) ref, zeros in padding."""
        return load(ref, (self.slice, *head, slice(None)), inside(self.real, width, padded(width)))

    def store(self, ref: Any, value: jax.Array, width: int) -> None:
        """Store into a (N, width) ref."""
        store(ref, (self.slice, slice(None)), value, inside(self._stored, width, padded(width)))

    def numbers(self, ref: Any, *head: Any) -> jax.Array:
        """Return (size,) of a (..., N) ref, 0 in padding."""
        return load(ref, (*head, self.slice), self.real)

    def put_numbers(self, ref: Any, value: jax.Array) -> None:
        """Store into a (N,) ref."""
        store(ref, (self.slice,), value, self._stored)

    def oldest(self) -> jax.Array:
        """Return (size,) index of the oldest token that each query sees; those of padding see none."""
        oldest = self.index - self.plan.left
        if self._packing is not None:
            oldest = jnp.maximum(oldest, load(self._packing.starts, (self.slice,), self._stored))
        return oldest if self.real is None else jnp.where(self.real, oldest, self.plan.length)


def visible(queries: Block, oldest: jax.Array, keys: Block) -> jax.Array:
    """Return (queries, keys) whether a query sees a key."""
    older = keys.index[None, :] <= queries.index[:, None]
    return older & (keys.index[None, :] >= oldest[:, None])


def padded(size: int) -> int:
    """Return the number of channels padded for a product."""
    return max(16, pl.next_power_of_2(size))
