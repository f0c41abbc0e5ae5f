"""Grid, blocks and launch of the kernels of Taylor attention: (rows x heads x value tiles, blocks of tokens).

Arrays keep the caller's layout (B, N, H, dim): a program reads its head's 32 to 128 bytes of each token, and
its neighbours on the grid read the rest of the cache line. Nothing is transposed or padded in memory. Rows
are on the first axis of the grid, since CUDA limits the others to `MAX_BLOCKS` programs.

Axes of arrays are letters: b row, h head, n token, k key channel, v value channel, t value tile, j block, and
of states f feature, m and l the axes of the moments.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import blocks, launch, quotient, remainder, whole
from pallas_kernels.taylor_attention.blocks import Chunk, Features, Packing, Plan, State, first_state

MAX_BLOCKS = 65_535
"""Maximum blocks of tokens per row and head."""

STATE, BLOCK_STATES, PACKING = ("bhfv", "bhml"), ("bhjfv", "bhjml"), ("bn", "b")
"""Axes of a state, of one per block, and of `starts` and `counts`."""

TABLES = 6
"""Number of `constant_tables`."""


def program_indices(plan: Plan, x: Any) -> tuple[Any, Any, Any]:
    """Return row, head and value tile of a program's first grid index."""
    tile: Any = 0
    if plan.value_tiles > 1:
        x, tile = quotient(x, plan.value_tiles), remainder(x, plan.value_tiles)
    return quotient(x, plan.heads), remainder(x, plan.heads), tile


def spec(plan: Plan, axes: str) -> pl.BlockSpec:
    """Return a program's block of an array with these axes; its ref drops axes of one element."""
    k = plan.layout.padded_key_size
    sizes = {"n": plan.blocks * plan.block, "k": k, "v": plan.value_tile}
    sizes |= {"f": plan.layout.size, "m": k + 1, "l": plan.layout.last}

    def at(x: Any, j: Any) -> dict[str, Any]:
        row, head, tile = program_indices(plan, x)
        return {"b": row, "h": head, "t": tile, "v": tile, "j": j}

    return blocks(axes, sizes, at)


def shape(plan: Plan, axes: str, dtype: Any = jnp.float32, blocks: int | None = None) -> jax.ShapeDtypeStruct:
    """Return the shape of a whole array with these axes, by default with all blocks."""
    sizes = {"b": plan.batch, "h": plan.heads, "n": plan.length, "k": plan.layout.key_size}
    sizes |= {"v": plan.value_size, "t": plan.value_tiles, "j": plan.blocks if blocks is None else blocks}
    sizes |= {"f": plan.layout.size, "m": plan.layout.padded_key_size + 1, "l": plan.layout.last}
    return jax.ShapeDtypeStruct([sizes[axis] for axis in axes], dtype)


def constant_tables(plan: Plan) -> list[np.ndarray]:
    """Return the tables as operands: R, T, weighted T, and their transposes."""
    columns = plan.layout.tables
    return [x.astype(plan.operand) for x in (*columns, *(x.T for x in columns))]


class Program(NamedTuple):
    """Data of a running program, besides its kernel's own operands."""

    plan: Plan
    packing: Packing | None
    states: tuple[Any, Any] | None
    query_features: Features
    """features of queries, with their weights"""
    key_features: Features
    outputs: tuple[Any, ...]
    tile: Any
    """the value tile"""
    start: Any
    """the first token"""

    def chunk(self, number: Any) -> Chunk:
        """Return the program's chunk with this number."""
        return Chunk(self.plan, self.start + number * self.plan.chunk, self.packing)

    def walk(self, step: Any, counts: Any = None) -> State:
        """Repeat ``step(i, state) -> state`` for each chunk, from the given state or an empty one.

        `counts` replace its count: a sum per token of a chunk, to be added up after the last one.
        """
        state = first_state(self.plan, self.states, self.tile)
        state = state if counts is None else state._replace(count=counts)
        return lax.fori_loop(0, self.plan.block // self.plan.chunk, step, state)


def running(plan: Plan, refs: Sequence[Any], has_states: bool = False, first: int = 0) -> Program:
    """Sort the refs that `run` appends to a kernel's own; the grid begins with block number `first`."""
    rest = list(refs)
    packing = Packing(rest.pop(0), rest.pop(0)) if plan.packed else None
    states = (rest.pop(0), rest.pop(0)) if has_states else None
    one, two, weighted, one_rows, two_rows, weighted_rows = rest[:TABLES]
    query_features = Features(plan, (one, weighted), (one_rows, weighted_rows), plan.scales[1])
    key_features = Features(plan, (one, two), (one_rows, two_rows))
    tile = program_indices(plan, pl.program_id(0))[2]
    start = (pl.program_id(1) + first) * plan.block
    return Program(plan, packing, states, query_features, key_features, tuple(rest[TABLES:]), tile, start)


def run(
    plan: Plan,
    body: Any,
    name: str,
    operands: Sequence[jax.Array],
    axes: Sequence[str],
    packing: Sequence[jax.Array],
    tables: Sequence[jax.Array],
    results: Sequence[tuple[str, Any]],
    *,
    states: Sequence[jax.Array] | None = None,
    count: int | None = None,
) -> tuple[jax.Array, ...]:
    """Launch a kernel on its own operands and, after them, the packing, states and tables.

    Args:
        operands, axes: arrays and their axes.
        packing: starts (B, N) and counts (B,), see `blocks.Packing`; empty unless packed.
        results: axes and dtypes.
        states: initial state of each block; None for empty ones.
        count: blocks of the grid, and of states in the results; None for all.
    """
    count = plan.blocks if count is None else count
    axes = [*axes, *(PACKING if packing else ()), *(BLOCK_STATES if states else ())]
    return tuple(
        launch(
            body,
            *(*operands, *packing, *(states or ()), *tables),
            grid=(plan.batch * plan.heads * plan.value_tiles, count),
            in_specs=[*(spec(plan, names) for names in axes), *map(whole, tables)],
            out_specs=[spec(plan, names) for names, _ in results],
            out_shape=[shape(plan, names, dtype, count) for names, dtype in results],
            warps=plan.warps,
            stages=plan.stages,
            name=f"taylor_{name}",
        )
    )
