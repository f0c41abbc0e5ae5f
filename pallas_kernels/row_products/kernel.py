"""Multiply one row with matrices: each program computes some columns, reading its share of one matrix once.

Partial sums, one per row of a tile, are float32 and added at the end: memory limits these products, not
arithmetic. With a gate a program computes the same columns of both halves of a matrix (K, 2, F).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import launch, load, store, whole


@dataclass(frozen=True)
class Variant:
    """Block sizes of one program."""

    rows: int = 128
    """numbers of the row per tile, a power of two that divides K"""
    columns: int = 32
    """columns per program, a power of two"""
    warps: int = 4
    stages: int = 1


TOGETHER = 4
"""Maximum number of tiles whose loads are in flight together."""

GATES: dict[str, Callable[[jax.Array], jax.Array]] = {"sigmoid": jax.nn.sigmoid, "silu": jax.nn.silu}
"""Activations of a gate, in float32."""


def products(x: jax.Array, *matrices: jax.Array, variant: Variant) -> tuple[jax.Array, ...]:
    """Run the kernel on x (K,) and matrices (K, N): x @ each, (N,)."""
    columns = variant.columns
    ends = [0]
    for matrix in matrices:
        ends.append(ends[-1] + pl.cdiv(matrix.shape[1], columns))

    def part(begin: int, end: int) -> Any:
        """Return a program's block of one matrix; programs of other matrices get any block and ignore it."""
        return lambda i: jnp.clip(i - begin, 0, end - begin - 1)

    parts = [part(*ends[n : n + 2]) for n in range(len(matrices))]
    in_specs = [pl.BlockSpec((len(x), columns), lambda i, at=at: (0, at(i))) for at in parts]
    out_specs = [pl.BlockSpec((columns,), lambda i, at=at: (at(i),)) for at in parts]
    widths = tuple(matrix.shape[1] for matrix in matrices)
    return tuple(
        launch(
            functools.partial(_products, ends=ends, parts=parts, widths=widths, rows=variant.rows),
            x,
            *matrices,
            grid=(ends[-1],),
            in_specs=[whole(x), *in_specs],
            out_specs=out_specs,
            out_shape=[jax.ShapeDtypeStruct((width,), x.dtype) for width in widths],
            warps=variant.warps,
            stages=variant.stages,
            name="row_products",
        )
    )


def _products(x: Any, *refs: Any, ends: list[int], parts: list[Any], widths: Any, rows: int) -> None:
    program, count = pl.program_id(0), len(widths)

    for n in range(count):
        # A closure per matrix: pl.when traces it at once.
        @pl.when((program >= ends[n]) & (program < ends[n + 1]))
        def _(matrix: Any = refs[n], y: Any = refs[count + n], n: int = n) -> None:
            columns = y.shape[0]
            inside = _inside(parts[n](program), columns, widths[n])
            store(y, slice(None), _sum(x, matrix, slice(None), rows, inside), inside)


def gated(x: jax.Array, matrix: jax.Array, *, gate: str, variant: Variant) -> tuple[jax.Array]:
    """Run the kernel on x (K,) and a matrix (K, 2, F): (x @ first half) * gate(x @ second half), (F,)."""
    columns, width = variant.columns, matrix.shape[2]
    shape = jax.ShapeDtypeStruct((width,), x.dtype)
    return (
        launch(
            functools.partial(_gated, width=width, gate=gate, rows=variant.rows),
            x,
            matrix,
            grid=(pl.cdiv(width, columns),),
            in_specs=[whole(x), pl.BlockSpec((len(x), 2, columns), lambda i: (0, 0, i))],
            out_specs=pl.BlockSpec((columns,), lambda i: (i,)),
            out_shape=shape,
            warps=variant.warps,
            stages=variant.stages,
            name="gated_row_product",
        ),
    )


def _gated(x: Any, matrix: Any, y: Any, *, width: int, gate: str, rows: int) -> None:
    columns = y.shape[0]
    inside = _inside(pl.program_id(0), columns, width)
    value, factor = (_sum(x, matrix, half, rows, inside).astype(y.dtype) for half in (0, 1))
    # Round as products that are stored in memory, so that a row gets the same gate as in a batch.
    store(y, slice(None), value.astype(jnp.float32) * GATES[gate](factor.astype(jnp.float32)), inside)


def _inside(part: Any, columns: int, width: int) -> jax.Array | None:
    """Return which columns of a program exist; None if all do."""
    return None if width % columns == 0 else part * columns + jnp.arange(columns) < width


def _sum(x: Any, matrix: Any, half: Any, rows: int, inside: jax.Array | None) -> jax.Array:
    """Return x @ the columns of a block, in float32."""
    columns = matrix.shape[-1]
    mask = None if inside is None else inside[None, :]

    def tile(begin: Any) -> jax.Array:
        at = pl.ds(begin, rows)
        index = (at, slice(None)) if len(matrix.shape) == 2 else (at, half, slice(None))
        return x[at].astype(jnp.float32)[:, None] * load(matrix, index, mask).astype(jnp.float32)

    tiles = x.shape[0] // rows
    together = math.gcd(tiles, TOGETHER)

    def some(n: Any, total: jax.Array) -> jax.Array:
        return sum((tile((n * together + i) * rows) for i in range(together)), total)

    total = jnp.zeros((rows, columns), jnp.float32)
    total = lax.fori_loop(0, tiles // together, some, total)
    return jnp.sum(total, axis=0)
