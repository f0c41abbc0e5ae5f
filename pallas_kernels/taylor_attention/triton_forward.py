"""The forward passes through jax-triton, with the signatures of `key_sums`, `scan_states` and `outputs`."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import triton_launch
from pallas_kernels.taylor_attention import scan, specs
from pallas_kernels.taylor_attention.blocks import Plan

MODULE = "taylor_attention.triton_kernels"


def key_sums(
    plan: Plan, tables: Any, k: jax.Array, v: jax.Array, packing: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """As `sums.key_sums`."""
    one, two, _, _, _, _, *vectors = tables
    return triton_launch.launch(
        triton_launch.kernels(MODULE).taylor_key_sums,
        k, v, *(packing or (k, k)), one, two, *vectors,
        grid=launch_grid(plan, plan.blocks - 1), out_shape=specs.state_shapes(plan, plan.blocks - 1),
        warps=plan.warps, stages=plan.stages, name="taylor_key_sums_triton", plan=plan,
    )  # fmt: skip


def scan_states(
    sums: jax.Array, initial: jax.Array | None, keep: jax.Array | None, reverse: bool = False
) -> jax.Array:
    """As `scan.scan_states`."""
    batch, heads, steps, *rest = sums.shape
    size = math.prod(rest)
    (out,) = triton_launch.launch(
        triton_launch.kernels(MODULE).taylor_scan,
        sums, sums if initial is None else initial, sums if keep is None else keep,
        grid=(batch * heads * -(-size // scan.ELEMENTS),),
        out_shape=[jax.ShapeDtypeStruct((batch, heads, steps + 1, *rest), jnp.float32)],
        warps=scan.WARPS, name="taylor_scan_triton",
        SIZE=size, STEPS=steps, HEADS=heads, ELEMENTS=scan.ELEMENTS,
        has_initial=initial is not None, has_keep=keep is not None, reverse=reverse,
    )  # fmt: skip
    return out


def outputs(
    plan: Plan, tables: Any, eps: float, q: jax.Array, k: jax.Array, v: jax.Array,
    prefix: tuple[jax.Array, jax.Array] | None,
    packing: Sequence[jax.Array], return_state: bool,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """As `outputs.outputs`."""
    one, two, weighted, _, _, _, *vectors = tables
    shapes = [
        jax.ShapeDtypeStruct(v.shape, v.dtype),
        jax.ShapeDtypeStruct((plan.batch, plan.heads, plan.length), jnp.float32),
    ]
    nowhere = {} if return_state else {"final_kv": None, "final_moments": None}
    return triton_launch.launch(
        triton_launch.kernels(MODULE).taylor_outputs,
        q, k, v, *(packing or (q, q)), *(prefix or (q, q)), one, two, weighted, *vectors,
        grid=launch_grid(plan, plan.blocks),
        out_shape=shapes + (specs.state_shapes(plan) if return_state else []),
        warps=plan.warps, stages=plan.stages, name="taylor_outputs_triton",
        plan=plan, eps=eps, has_prefix=prefix is not None, return_state=return_state, **nowhere,
    )  # fmt: skip


def launch_grid(plan: Plan, blocks: int) -> tuple[int, int]:
    """Programs of a kernel: (rows x heads x value tiles, blocks of tokens); CUDA limits the second axis."""
    return plan.batch * plan.heads * plan.value_tiles, blocks
