"""Launch Mosaic GPU kernels, compiled or interpreted; no other module uses Mosaic GPU directly."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.launch import is_interpreted

# Releases differ in the contents of this module; everything used here exists from jax 0.11 on.
plgpu: Any = mosaic_gpu

THREADS = 2
"""Warpgroups of a program, of 128 threads each."""

WARPGROUP = "warpgroup"
GRID = ("head", "row", "block")

TILE = (plgpu.TilingTransform((8, 16)), plgpu.SwizzleTransform(32))
"""Layout of product operands in shared memory: 16 columns, the depth of one product, are 32 bytes."""

WIDE_TILE = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

Layout: Any = plgpu.Layout.WGMMA
"""Layout of 64 rows in the registers of a warpgroup, as the tensor cores read and write them."""

ROW, COLUMN = Layout.reduce(1), Layout.reduce(0)
"""Layouts of one number per row, and per column."""


def run(
    body: Callable[..., None],
    *operands: jax.Array,
    grid: Sequence[int],
    out_type: Sequence[Any],
    scratch: Mapping[str, Any],
    name: str,
) -> tuple[jax.Array, ...]:
    """Run `body(*operand refs, *output refs, **scratch refs)` once per grid point (heads, rows, blocks)."""
    options: dict[str, Any] = {}
    if is_interpreted():
        options["interpret"] = plgpu.InterpretGPUParams(detect_races=True)
    body.__name__ = name  # shown by profilers
    return plgpu.kernel(
        body,
        out_type=tuple(out_type),
        scratch_types=dict(scratch),
        grid=tuple(grid),
        grid_names=GRID,
        num_threads=THREADS,
        thread_name=WARPGROUP,
        # Layouts and swizzles are explicit, which allows loading a column of plain shared memory. A barrier
        # after each store is not needed: what a thread writes, others read only after `Program.synchronise`,
        # which waits for all threads and makes writes visible to copies and products.
        #   stages      read until PUBLISHED, then loaded again; zeros of padding replace what the thread read
        #   phi         and `weighted`: written before WRITTEN, read until PUBLISHED
        #   kv, moments, rounded: read until WRITTEN, written before PUBLISHED
        #   values_out  written after the wait for its last copy and before `commit_smem`, both of which
        #               synchronise the warpgroup; the other one has its own half
        #   factors     written before the first PUBLISHED, then only read
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True
        ),
        **options,
    )(*operands)


def load(ref: Any, layout: Any = Layout) -> jax.Array:
    """Load registers in this layout from any memory."""
    return plgpu.load(ref, layout=layout, optimized=False)


def store(ref: Any, value: jax.Array) -> None:
    """Store into device memory."""
    if hasattr(plgpu, "store"):  # from jax 0.12 on
        plgpu.store(ref, value, optimized=False)
    else:
        ref[...] = value


def iota(shape: tuple[int, int], axis: int) -> jax.Array:
    """Return the index along an axis, int32."""
    if axis == 0:  # made for both axes at once, rows would occupy a register for each of a thread's elements
        return along_rows(rows_iota(shape[0]), shape[1])
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=Layout)


def rows_iota(count: int) -> jax.Array:
    """Return the index of each row, int32."""
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=ROW)


def zeros(*shape: int) -> jax.Array:
    """Return float32 zeros."""
    return plgpu.layout_cast(jnp.full(shape, 0, jnp.float32), Layout)


def along_rows(x: jax.Array, width: int) -> jax.Array:
    """Return (64,) as (64, width)."""
    return lax.broadcast_in_dim(x, (x.shape[0], width), (0,))


def multiply(accumulator: Any, a: Any, b: Any, staging: Any = None) -> None:
    """Start accumulator += a b with `b` in shared memory; does not wait.

    Args:
        a: in shared memory or in registers.
        staging: shared memory for an `a` in registers if interpreted: the interpreter takes no registers.
    """
    if staging is None:
        plgpu.wgmma(accumulator, a, b)
        return
    operand = staging.at[:, : a.shape[1]]
    operand[...] = a
    plgpu.commit_smem()
    plgpu.wgmma(accumulator, operand, b)
    plgpu.wgmma_wait(0)


def nothing() -> None:
    """Do nothing while products run."""


def products(
    *factors: tuple[Any, Any, int, Any], meanwhile: Callable[[], None] = nothing
) -> tuple[jax.Array, ...]:
    """Return products a b, (rows of a, columns) float32 each, from (a, b, columns, staging) as in `multiply`.

    Args:
        meanwhile: called while they run.
    """

    def run(*accumulators: Any) -> tuple[jax.Array, ...]:
        for accumulator, (a, b, _, staging) in zip(accumulators, factors, strict=True):
            multiply(accumulator, a, b, staging)
        meanwhile()
        return tuple(accumulator[...] for accumulator in accumulators)

    types = (plgpu.ACC((a.shape[0], columns), jnp.float32) for a, _, columns, _ in factors)
    return pl.run_scoped(run, *types)


def add_product(before: jax.Array, a: Any, b: Any, meanwhile: Callable[[], None] = nothing) -> jax.Array:
    """Return before + a b with both operands in shared memory, on the GPU in the registers of `before`.

    Args:
        meanwhile: called while the product runs.
    """

    def start(accumulator: Any) -> None:
        plgpu.wgmma(accumulator, a, b)
        meanwhile()

    def product(accumulator: Any) -> jax.Array:
        start(accumulator)
        return accumulator[...]

    if is_interpreted():  # the interpreter has no accumulator with an initial value
        return before + pl.run_scoped(product, plgpu.ACC(before.shape, before.dtype))
    return pl.run_state(start)(plgpu.ACC.init(before))
