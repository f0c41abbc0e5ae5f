"""Grid and block specs of the kernels of Taylor attention: (rows x heads x value tiles, blocks of tokens).

Arrays stay as the caller has them, (B, N, H, dim): a program reads its head's 32 to 128 bytes of each token,
and its neighbours on the grid read the rest of the line. Nothing is transposed or padded in memory. Rows
share the first axis of the grid, since CUDA limits the others to `MAX_BLOCKS` programs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import launch, whole
from pallas_kernels.taylor_attention.blocks import Features, Packing, Plan

MAX_BLOCKS = 65_535
"""Blocks of tokens per row and head."""


def place(plan: Plan, x: Any) -> tuple[Any, Any, Any]:
    """Row, head and value tile of a program's first grid index."""
    tile: Any = 0
    if plan.value_tiles > 1:
        x, tile = lax.div(x, plan.value_tiles), lax.rem(x, plan.value_tiles)
    return lax.div(x, plan.heads), lax.rem(x, plan.heads), tile


def value_tile(plan: Plan) -> Any:
    """The value tile of the running program."""
    return place(plan, pl.program_id(0))[2]


def block_start(plan: Plan, first: int = 0) -> Any:
    """The first token of the running program, where the grid begins with block number `first`."""
    return (pl.program_id(1) + first) * plan.block


def _whole_rows(plan: Plan) -> int:
    return plan.blocks * plan.block


def keys(plan: Plan) -> pl.BlockSpec:
    """Of (B, N, H, K) arrays: (N, K) refs."""

    def index(x: Any, j: Any) -> Any:
        row, head, _ = place(plan, x)
        return row, 0, head, 0

    return pl.BlockSpec((None, _whole_rows(plan), None, plan.layout.padded_key_size), index)


def key_gradients(plan: Plan) -> pl.BlockSpec:
    """Of (tiles, B, N, H, K) arrays, one share of the gradient per value tile: (N, K) refs."""

    def index(x: Any, j: Any) -> Any:
        row, head, tile = place(plan, x)
        return tile, row, 0, head, 0

    return pl.BlockSpec((None, None, _whole_rows(plan), None, plan.layout.padded_key_size), index)


def values(plan: Plan) -> pl.BlockSpec:
    """Of (B, N, H, V) arrays: (N, tile) refs."""

    def index(x: Any, j: Any) -> Any:
        row, head, tile = place(plan, x)
        return row, 0, head, tile

    return pl.BlockSpec((None, _whole_rows(plan), None, plan.value_tile), index)


def numbers(plan: Plan) -> pl.BlockSpec:
    """Of (B, H, N) arrays: (N,) refs."""
    return pl.BlockSpec((None, None, _whole_rows(plan)), lambda x, j: (*place(plan, x)[:2], 0))


def packing_specs(plan: Plan) -> list[pl.BlockSpec]:
    """Of `starts` (B, N) and `counts` (B,): a (N,) ref and a scalar ref."""
    starts = pl.BlockSpec((None, _whole_rows(plan)), lambda x, j: (place(plan, x)[0], 0))
    return [starts, pl.BlockSpec((None,), lambda x, j: (place(plan, x)[0],))]


def block_states(plan: Plan) -> list[pl.BlockSpec]:
    """Of (B, H, blocks, size, V) and (B, H, blocks, K + 1, last) arrays."""

    def kv_index(x: Any, j: Any) -> Any:
        row, head, tile = place(plan, x)
        return row, head, j, 0, tile

    k, last = plan.layout.padded_key_size, plan.layout.last
    return [
        pl.BlockSpec((None, None, None, plan.layout.size, plan.value_tile), kv_index),
        pl.BlockSpec((None, None, None, k + 1, last), lambda x, j: (*place(plan, x)[:2], j, 0, 0)),
    ]


def states(plan: Plan) -> list[pl.BlockSpec]:
    """Of (B, H, size, V) and (B, H, K + 1, last) arrays."""

    def kv_index(x: Any, j: Any) -> Any:
        row, head, tile = place(plan, x)
        return row, head, 0, tile

    k, last = plan.layout.padded_key_size, plan.layout.last
    return [
        pl.BlockSpec((None, None, plan.layout.size, plan.value_tile), kv_index),
        pl.BlockSpec((None, None, k + 1, last), lambda x, j: (*place(plan, x)[:2], 0, 0)),
    ]


def state_shapes(plan: Plan, blocks: int | None = None) -> list[jax.ShapeDtypeStruct]:
    """Shapes of one state per row and head, or of `blocks`."""
    lead = (plan.batch, plan.heads, *(() if blocks is None else (blocks,)))
    k, last = plan.layout.padded_key_size, plan.layout.last
    return [
        jax.ShapeDtypeStruct((*lead, plan.layout.size, plan.value_size), jnp.float32),
        jax.ShapeDtypeStruct((*lead, k + 1, last), jnp.float32),
    ]


def constant_tables(plan: Plan) -> list[np.ndarray]:
    """The tables as operands: R, T, weighted T, their transposes, offsets r, t, linear features."""
    tables = plan.layout.tables
    columns = (tables.one, tables.two, tables.weighted)
    matrices = [x.astype(plan.operand) for x in (*columns, *(x.T for x in columns))]
    return [*matrices, tables.one_offset, tables.two_offset, tables.linear, tables.half_linear]


TABLES = 10
"""How many operands `constant_tables` are."""

MATRICES = 6
"""The first of them, which the kernels take; they know the vectors by the number of a feature."""


class Refs(NamedTuple):
    """What a kernel finds behind its own operands."""

    packing: Packing | None
    states: tuple[Any, Any] | None
    query_features: Features
    """of queries, with their weights"""
    key_features: Features
    outputs: tuple[Any, ...]


def unpack(plan: Plan, refs: Sequence[Any], has_states: bool) -> Refs:
    """Sort the refs that `run` appends to a kernel's own."""
    rest = list(refs)
    packing = Packing(rest.pop(0), rest.pop(0)) if plan.packed else None
    states = (rest.pop(0), rest.pop(0)) if has_states else None
    one, two, weighted, one_rows, two_rows, weighted_rows = rest[:MATRICES]
    query_features = Features(plan, (one, weighted), (one_rows, weighted_rows), plan.scales[1])
    key_features = Features(plan, (one, two), (one_rows, two_rows))
    return Refs(packing, states, query_features, key_features, tuple(rest[MATRICES:]))


def run(
    plan: Plan, body: Any, name: str, *, blocks: int, operands: Sequence[jax.Array],
    in_specs: Sequence[pl.BlockSpec], packing: Sequence[jax.Array], states: Sequence[jax.Array] | None,
    tables: Sequence[jax.Array], out_specs: Any, out_shape: Any,
) -> Any:  # fmt: skip
    """Launch a kernel on its own operands and, behind them, the packing, states and tables."""
    tables = tables[:MATRICES]
    shared = [*(packing_specs(plan) if packing else []), *([] if states is None else block_states(plan))]
    return launch(
        body, *operands, *packing, *(states or ()), *tables,
        grid=(plan.batch * plan.heads * plan.value_tiles, blocks),
        in_specs=[*in_specs, *shared, *map(whole, tables)], out_specs=out_specs, out_shape=out_shape,
        warps=plan.warps, stages=plan.stages, name=f"taylor_{name}",
    )  # fmt: skip
