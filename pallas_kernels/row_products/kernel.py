"""Multiply one row with matrices: each program computes some results, from a contiguous row of a matrix each.

Memory limits these products, so a matrix is stored by its results, (N, K), and a program reads whole rows of
it. Partial sums, one per number of a tile, are float32 and added at the end. With a gate a program computes
the same results of both halves of a matrix (2, F, K).
"""

import functools
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

    width: int = 1024
    """numbers of the row per tile, a power of two that divides K"""
    results: int = 4
    """results per program, a power of two"""
    warps: int = 4
    stages: int = 1


TOGETHER = 8
"""Maximum number of tiles whose loads are in flight together."""

GATES: dict[str, Callable[[jax.Array], jax.Array]] = {"sigmoid": jax.nn.sigmoid, "silu": jax.nn.silu}
"""Activations of a gate, in float32."""


def products(x: jax.Array, *arrays: jax.Array, count: int, variant: Variant) -> tuple[jax.Array, ...]:
    """Run the kernel on x (K,), `count` matrices (N, K) and maybe as many biases (N,).

    Returns:
        Each matrix @ x, plus its bias, (N,).
    """
    results, matrices = variant.results, arrays[:count]
    ends = [0]
    for matrix in matrices:
        ends.append(ends[-1] + pl.cdiv(len(matrix), results))

    def part(begin: int, end: int) -> Any:
        """Return a program's block of one matrix; programs of other matrices get any block and ignore it."""
        return lambda i: jnp.clip(i - begin, 0, end - begin - 1)

    parts = [part(*ends[n : n + 2]) for n in range(len(matrices))]
    in_specs = [pl.BlockSpec((results, len(x)), lambda i, at=at: (at(i), 0)) for at in parts]
    out_specs = [pl.BlockSpec((results,), lambda i, at=at: (at(i),)) for at in parts]
    sizes = tuple(map(len, matrices))
    return tuple(
        launch(
            functools.partial(_products, ends=ends, parts=parts, sizes=sizes, width=variant.width),
            x,
            *arrays,
            grid=(ends[-1],),
            in_specs=[whole(x), *in_specs, *out_specs[: len(arrays) - count]],
            out_specs=out_specs,
            out_shape=[jax.ShapeDtypeStruct((size,), x.dtype) for size in sizes],
            warps=variant.warps,
            stages=variant.stages,
            name="row_products",
        )
    )


def _products(x: Any, *refs: Any, ends: list[int], parts: list[Any], sizes: Any, width: int) -> None:
    program, count = pl.program_id(0), len(sizes)
    matrices, biases, ys = refs[:count], refs[count:-count], refs[-count:]

    for n in range(count):
        # A closure per matrix: pl.when traces it at once.
        @pl.when((program >= ends[n]) & (program < ends[n + 1]))
        def _(n: int = n) -> None:
            y, every = ys[n], slice(None)
            inside = _inside(parts[n](program), y.shape[0], sizes[n])
            total = _sum(x, matrices[n], (), width, inside)
            if biases:  # round as a product that is stored in memory
                total = total.astype(y.dtype).astype(jnp.float32)
                total += load(biases[n], every, inside).astype(jnp.float32)
            store(y, every, total, inside)


def gated(x: jax.Array, matrix: jax.Array, *, gate: str, variant: Variant) -> tuple[jax.Array]:
    """Run the kernel on x (K,) and a matrix (2, F, K): (first half @ x) * gate(second half @ x), (F,)."""
    results, count = variant.results, matrix.shape[1]
    return (
        launch(
            functools.partial(_gated, count=count, gate=gate, width=variant.width),
            x,
            matrix,
            grid=(pl.cdiv(count, results),),
            in_specs=[whole(x), pl.BlockSpec((2, results, len(x)), lambda i: (0, i, 0))],
            out_specs=pl.BlockSpec((results,), lambda i: (i,)),
            out_shape=jax.ShapeDtypeStruct((count,), x.dtype),
            warps=variant.warps,
            stages=variant.stages,
            name="gated_row_product",
        ),
    )


def _gated(x: Any, matrix: Any, y: Any, *, count: int, gate: str, width: int) -> None:
    inside = _inside(pl.program_id(0), y.shape[0], count)
    value, factor = (_sum(x, matrix, (half,), width, inside).astype(y.dtype) for half in (0, 1))
    # Round as products that are stored in memory, so that a row gets the same gate as in a batch.
    store(y, slice(None), value.astype(jnp.float32) * GATES[gate](factor.astype(jnp.float32)), inside)


def _inside(part: Any, results: int, count: int) -> jax.Array | None:
    """Return which results of a program exist; None if all do."""
    return None if count % results == 0 else part * results + jnp.arange(results) < count


def _sum(x: Any, matrix: Any, half: tuple[int, ...], width: int, inside: jax.Array | None) -> jax.Array:
    """Return a block of rows, or of rows of one half, @ x in float32."""
    mask = None if inside is None else inside[:, None]
    tiles = x.shape[0] // width
    together = max(count for count in range(1, TOGETHER + 1) if tiles % count == 0)

    def tile(begin: Any) -> jax.Array:
        at = pl.ds(begin, width)
        rows = load(matrix, (*half, slice(None), at), mask).astype(jnp.float32)
        return rows * x[at].astype(jnp.float32)[None, :]

    def some(n: Any, total: jax.Array) -> jax.Array:
        return sum((tile((n * together + i) * width) for i in range(together)), total)

    total = jnp.zeros((matrix.shape[-2], width), jnp.float32)
    return jnp.sum(lax.fori_loop(0, tiles // together, some, total), axis=1)
