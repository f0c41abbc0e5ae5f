"""The backward passes through jax-triton, with the signatures of `query_sums`, `query_gradients` and
`key_or_value_gradient`."""

from collections.abc import Sequence
from typing import Any

import jax

from pallas_kernels import triton_launch
from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.blocks import Plan
from pallas_kernels.taylor_attention.dq import share_dtype, sum_of_shares
from pallas_kernels.taylor_attention.triton_forward import launch_grid

MODULE = "taylor_attention.triton_backward_kernels"


def query_sums(
    plan: Plan, tables: Any, q: jax.Array, do: jax.Array, rden: jax.Array, dd: jax.Array,
    packing: Sequence[jax.Array], first: int,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """As `sums.query_sums`."""
    one, _, weighted, _, _, _, *vectors = tables
    blocks = plan.blocks - first
    return triton_launch.launch(
        triton_launch.kernels(MODULE).taylor_query_sums,
        q, do, rden, dd, *(packing or (q, q)), one, weighted, *vectors,
        grid=launch_grid(plan, blocks), out_shape=specs.state_shapes(plan, blocks),
        warps=plan.warps, stages=plan.stages, name="taylor_query_sums_triton", plan=plan, first=first,
    )  # fmt: skip


def query_gradients(
    plan: Plan, tables: Any, q: jax.Array, k: jax.Array, v: jax.Array,
    do: jax.Array, rden: jax.Array, dd: jax.Array,
    prefix: tuple[jax.Array, jax.Array] | None, packing: Sequence[jax.Array],
) -> jax.Array:  # fmt: skip
    """As `dq.query_gradients`."""
    shape = jax.ShapeDtypeStruct((plan.value_tiles, *q.shape), share_dtype(plan, q))
    has_prefix = prefix is not None
    shares = _walk(plan, "dq", tables, [q, k, v, do, rden, dd], packing, prefix, shape, has_prefix=has_prefix)
    return sum_of_shares(shares, q)


def key_or_value_gradient(
    plan: Plan, tables: Any, q: jax.Array, k: jax.Array, v: jax.Array,
    do: jax.Array, rden: jax.Array, dd: jax.Array,
    suffix: tuple[jax.Array, jax.Array] | None, packing: Sequence[jax.Array], wanted: str,
) -> jax.Array:  # fmt: skip
    """As `dkv.key_or_value_gradient`."""
    shape = jax.ShapeDtypeStruct(v.shape, v.dtype)
    if wanted == "dk":
        shape = jax.ShapeDtypeStruct((plan.value_tiles, *k.shape), share_dtype(plan, k))
    has_suffix = suffix is not None
    result = _walk(
        plan, wanted, tables, [q, k, v, do, rden, dd], packing, suffix, shape, has_suffix=has_suffix
    )
    return sum_of_shares(result, k) if wanted == "dk" else result


def _walk(
    plan: Plan, name: str, tables: Any, operands: Sequence[jax.Array], packing: Sequence[jax.Array],
    states: tuple[jax.Array, jax.Array] | None, shape: jax.ShapeDtypeStruct, **constants: Any,
) -> jax.Array:  # fmt: skip
    """Run one of the kernels over all blocks; where it has no packing or states they point to the queries."""
    one, two, weighted, _, _, _, *vectors = tables
    nowhere = operands[0], operands[0]
    (result,) = triton_launch.launch(
        getattr(triton_launch.kernels(MODULE), f"taylor_{name}"),
        *operands, *(packing or nowhere), *(states or nowhere), one, two, weighted, *vectors,
        grid=launch_grid(plan, plan.blocks), out_shape=[shape],
        warps=plan.warps, stages=plan.stages, name=f"taylor_{name}_triton", plan=plan, **constants,
    )  # fmt: skip
    return result
