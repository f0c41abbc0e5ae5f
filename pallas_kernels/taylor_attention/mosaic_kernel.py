"""The Mosaic kernels of the forward pass, equivalent to `sums.key_sums` and `outputs.outputs`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention import mosaic_launch
from pallas_kernels.taylor_attention.mosaic_plan import PART, Plan, Tokens, scratch_types
from pallas_kernels.taylor_attention.mosaic_program import Program


def key_sums(plan: Plan, k: jax.Array, v: jax.Array, packing: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Return the sums of each block but the last: (B, H, blocks - 1, V, 224) and (..., 64, 16), float32.

    Args:
        k, v: (B, N, H, 16) and (B, N, H, V) bfloat16. N and V may be less than the plan's sizes, but must be
            multiples of 8 and 16 and at least a chunk and a part: copies pad them with zeros.
        packing: starts (B, N) and counts (B,) int32 of packed plans; else empty.
    """

    def body(*refs: Any, **scratch: Any) -> None:
        *operands, kv, moments = refs
        program = Program(plan, Tokens(None, *operands), scratch)
        program.store(program.walk((), ()), kv, moments, program.block)

    blocks, scratch = plan.blocks - 1, scratch_types(False, False)
    options = {"grid": plan.grid(blocks), "out_type": state_shapes(plan, blocks), "scratch": scratch}
    return mosaic_launch.run(body, k, v, *packing, name="taylor_key_sums_mosaic", **options)


def outputs(
    plan: Plan,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    packing: Sequence[jax.Array],
    prefix: Sequence[jax.Array],
    return_state: bool,
) -> tuple[jax.Array, ...]:
    """Return outputs (B, N, H, V), reciprocal normalisers (B, H, N) and, on request, the final state.

    Args:
        q, k, v, packing: as in `key_sums`.
        prefix: initial state of each block, in the form of `key_sums` for all blocks; or empty.
    """

    def body(*refs: Any, **scratch: Any) -> None:
        given = 3 + len(packing)
        program, results = Program(plan, Tokens(*refs[:given]), scratch), refs[given + len(prefix) :]
        state = program.walk(refs[given : given + len(prefix)], results[:2])
        if return_state:
            last = program.block == plan.blocks - 1
            pl.when(last)(lambda: program.store(state, *results[2:], block=0))

    out_type = [
        jax.ShapeDtypeStruct(v.shape, v.dtype),
        jax.ShapeDtypeStruct((plan.batch, plan.heads, plan.length), jnp.float32),
        *(state_shapes(plan, 1) if return_state else []),
    ]
    scratch = scratch_types(True, v.shape[-1] % PART == 0)
    options = {"grid": plan.grid(plan.blocks), "out_type": out_type, "scratch": scratch}
    return mosaic_launch.run(body, q, k, v, *packing, *prefix, name="taylor_outputs_mosaic", **options)


def state_shapes(plan: Plan, blocks: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of the states of `blocks` blocks of each row and head."""
    lead = (plan.batch, plan.heads, blocks)
    return [
        jax.ShapeDtypeStruct((*lead, plan.values, features.COLUMNS), jnp.float32),
        jax.ShapeDtypeStruct((*lead, features.ROWS, features.KEY_SIZE), jnp.float32),
    ]
