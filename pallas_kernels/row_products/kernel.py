"""Multiply one row with matrices: each program computes some results, from a contiguous row of a matrix each.

Memory limits these products, so a matrix is stored by its results, (N, K), and a program reads whole rows of
it. Partial sums, one per number of a tile, are float32 and added at the end. With a gate a program computes
the same results of both halves of a matrix (2, F, K); so it does if they are the inputs and the gate of a
short convolution, which it then advances. The row may be the norm of a sum (`_Norm`): every program computes
it, for a norm in a launch of its own takes longer.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.conv_step import loaded
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
"""Maximum number of tiles of a matrix whose loads are in flight together."""

LOADED = 8192
"""Maximum numbers of one result, and of its gate, whose loads are in flight together."""

f32 = jnp.float32

GATES: dict[str, Callable[[jax.Array], jax.Array]] = {"sigmoid": jax.nn.sigmoid, "silu": jax.nn.silu}
"""Activations of a gate, in float32."""


class Operands(NamedTuple):
    """Arrays of one launch."""

    row: tuple[Any, ...]
    """one array, (K,), or those of `_Norm`"""
    matrices: tuple[Any, ...]
    """(N, K) each, or one (2, N, K)"""
    biases: tuple[Any, ...]
    """none, or one for each matrix: (N,), or (2, N)"""
    conv: tuple[Any, ...]
    """none, or of a convolution of halves history (T - 1, N), age (1,), taps (T, N), and maybe bias (N,)"""


def products(
    *arrays: jax.Array, structure: Any, gate: str | None, eps: float, variant: Variant
) -> tuple[jax.Array, ...]:
    """Run the kernel on arrays, which are `Operands` of this structure.

    Returns:
        Each matrix @ the row, plus its bias, (N,); of halves with a gate first * gate(second), with a
        convolution silu(conv(first)) * second and the new history. With a norm also the sum and its mean
        square.
    """
    given: Operands = jax.tree.unflatten(structure, arrays)
    row, matrices, results = given.row, given.matrices, variant.results
    sizes, ends = [matrix.shape[-2] for matrix in matrices], [0]
    for size in sizes:
        ends.append(ends[-1] + pl.cdiv(size, results))

    def part(begin: int, end: int) -> Any:
        """Return a program's block of one matrix; programs of other matrices get any block and ignore it."""
        return lambda i: jnp.clip(i - begin, 0, end - begin - 1)

    def spec(array: Any, at: Any, axis: int = -1) -> pl.BlockSpec:
        """Return a spec of an array whose axis `axis` is that of results."""
        before, after = array.shape[:axis], array.shape[axis:][1:]
        shape = *before, results, *after
        return pl.BlockSpec(shape, lambda i: (*(0 for _ in before), at(i), *(0 for _ in after)))

    parts = [part(*ends[n : n + 2]) for n in range(len(matrices))]
    like = jax.ShapeDtypeStruct
    ys = [like((size,), row[0].dtype) for size in sizes]
    out_specs, aliases, name = [*map(spec, ys, parts)], {}, "gated_row_product" if gate else "row_products"
    in_specs = [
        *map(whole, jax.tree.leaves(row)),
        *(spec(each, at, -2) for each, at in zip(matrices, parts, strict=True)),
    ]
    in_specs += map(spec, given.biases, parts)
    if given.conv:
        aliases, name = {len(in_specs): len(ys)}, "conv_row_product"
        history, age, *others = given.conv
        of_history, *of_others = (spec(each, parts[0]) for each in (history, *others))
        in_specs += [of_history, whole(age), *of_others]
        ys.append(like(history.shape, history.dtype))
        out_specs.append(of_history)
    sums = []
    if len(row) > 1:
        stream = row[2]
        sums = [like(row[0].shape, f32 if stream is None else stream.dtype), like((1,), f32)]
    options: dict[str, Any] = {"gate": gate, "eps": eps, "width": variant.width}
    return tuple(
        launch(
            functools.partial(_products, structure=structure, ends=ends, parts=parts, sizes=sizes, **options),
            *arrays,
            grid=(ends[-1],),
            in_specs=in_specs,
            out_specs=[*out_specs, *map(whole, sums)],
            out_shape=[*ys, *sums],
            warps=variant.warps,
            stages=variant.stages,
            aliases=aliases,
            name=name,
        )
    )


def _products(
    *refs: Any, structure: Any, ends: list[int], parts: Any, sizes: Any, gate: Any, eps: float, width: int
) -> None:
    given: Operands = jax.tree.unflatten(structure, refs[: structure.num_leaves])
    program, results = pl.program_id(0), refs[structure.num_leaves :]

    for n, matrix in enumerate(given.matrices):
        # A closure per matrix: pl.when traces it at once.
        @pl.when((program >= ends[n]) & (program < ends[n + 1]))
        def _(n: int = n, matrix: Any = matrix) -> None:
            y, every = results[n], slice(None)
            x: Any = given.row[0] if len(given.row) == 1 else _Norm(given.row, eps, width)
            inside = _inside(parts[n](program), y.shape[0], sizes[n])
            halves = [(0,), (1,)] if len(matrix.shape) == 3 else [()]
            # These loads come before those of the sums, so that nothing waits for them after the sums.
            biases = [load(given.biases[n], (*half, every), inside) for half in halves if given.biases]
            conv = loaded(*given.conv, inside=inside) if given.conv else None
            # Rounded as products that are stored in memory, as in a batch.
            found = [_rounded(total, y.dtype) for total in _sums(x, matrix, halves, width, inside)]
            if biases:
                found = [_rounded(a + b.astype(f32), y.dtype) for a, b in zip(found, biases, strict=True)]
            total, *factor = found
            if gate:
                total *= GATES[gate](factor[0])
            if conv:
                total = conv(total, results[1]) * factor[0]
            store(y, every, total, inside)
            if len(given.row) > 1 and n == 0:
                x.store_sum(program, *results[-2:])


class _Norm:
    """A row that is read like a ref: y = x r scale, r = (mean(x^2) + eps)^(-1/2), 0 if that is no number.

    x is the sum of a branch (K,), whose dtype y has, and maybe a stream and a bias (K,), and a number (1,).
    Its mean square is summed where y is first read, by then with a matrix's loads in flight.
    """

    def __init__(self, refs: Sequence[Any], eps: float, width: int) -> None:
        branch, self._scale, stream, *more = refs
        self._addends = [ref for ref in (stream, branch, *more) if ref is not None]
        self._eps, self._width, self.shape, self._dtype = eps, width, branch.shape, branch.dtype

    def __getitem__(self, at: Any) -> jax.Array:
        y = self._sum(at) * lax.rsqrt(self._mean + self._eps) * self._scale[at].astype(f32)
        return jnp.where(self._mean < jnp.inf, y, 0.0).astype(self._dtype)

    def store_sum(self, program: Any, total: Any, mean: Any) -> None:
        """Store, by the first program, the sum, NaN if its mean square is no number, and the mean square."""

        @pl.when(program == 0)
        def _() -> None:
            for at in self._tiles:
                store(total, at, jnp.where(self._mean < jnp.inf, self._sum(at), jnp.nan))
            mean[...] = jnp.broadcast_to(self._mean, (1,))

    @property
    def _tiles(self) -> list[Any]:
        return [pl.ds(begin, self._width) for begin in range(0, self.shape[0], self._width)]

    @functools.cached_property
    def _mean(self) -> jax.Array:
        return jnp.sum(sum(self._sum(at) ** 2 for at in self._tiles)) * (1 / self.shape[0])

    def _sum(self, at: Any) -> Any:
        return sum(ref[at if ref.shape == self.shape else slice(None)].astype(f32) for ref in self._addends)


def _rounded(x: jax.Array, dtype: Any) -> jax.Array:
    return x.astype(dtype).astype(f32)


def _inside(part: Any, results: int, count: int) -> jax.Array | None:
    """Return which results of a program exist; None if all do."""
    return None if count % results == 0 else part * results + jnp.arange(results) < count


def _sums(
    x: Any, matrix: Any, parts: Sequence[tuple[int, ...]], width: int, inside: jax.Array | None
) -> list[jax.Array]:
    """Return a block of rows of each part of a matrix, the whole (), or a half, @ x in float32."""
    mask = None if inside is None else inside[:, None]
    tiles = x.shape[0] // width
    largest = min(TOGETHER, LOADED // (len(parts) * width))
    together = max(count for count in range(1, max(1, largest) + 1) if tiles % count == 0)

    def some(n: Any, totals: list[jax.Array]) -> list[jax.Array]:
        every = [pl.ds((n * together + i) * width, width) for i in range(together)]
        rows = [[load(matrix, (*part, slice(None), at), mask) for at in every] for part in parts]
        row = [x[at].astype(f32)[None, :] for at in every]
        return [
            sum((tile.astype(f32) * part for tile, part in zip(each, row, strict=True)), total)
            for each, total in zip(rows, totals, strict=True)
        ]

    totals = [jnp.zeros((matrix.shape[-2], width), f32)] * len(parts)
    if tiles == together:
        totals = some(0, totals)
    else:
        x[pl.ds(0, width)]  # a norm's mean square is known before the loop
        totals = lax.fori_loop(0, tiles // together, some, totals)
    return [jnp.sum(total, axis=1) for total in totals]
