"""The Mosaic kernels, equivalent to those of `sums`, `outputs` and `gradients`.

All arrays are (B, N, H, 16) and (B, N, H, V) bfloat16, the vectors (B, H, N) float32. N and V may be less
than the plan's sizes, but must be multiples of 8 and 16 and at least a chunk and a part: copies pad them with
zeros. `packing` are starts (B, N) and counts (B,) int32 of packed plans; else it is empty. Shares of
gradients have the padded length and one part for each 64 value channels; they are to be added.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_chunk, mosaic_gradients, mosaic_launch
from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention.mosaic_plan import (
    KEYS,
    QUERIES,
    Plan,
    Side,
    scratch_types,
    values_layout,
)
from pallas_kernels.taylor_attention.mosaic_program import Program


def key_sums(plan: Plan, inputs: dict[str, jax.Array], packing: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Return the sums of each block but the last: (B, H, blocks - 1, V, 224) and (..., 64, 16), float32.

    Args:
        inputs: k and v.
    """
    return _sums(plan, "key_sums", KEYS, inputs, packing, 0)


def query_sums(
    plan: Plan, inputs: dict[str, jax.Array], packing: Sequence[jax.Array], first: int
) -> tuple[jax.Array, ...]:
    """Return the sums over the queries of each block from block `first` on, as `key_sums`.

    The moments are (B, H parts, blocks - first, 64, 16).

    Args:
        inputs: q, do, rden, and e (B, H parts, N).
    """
    return _sums(plan, "query_sums", QUERIES, inputs, packing, first)


def _sums(
    plan: Plan, name: str, side: Side, inputs: dict[str, jax.Array], packing: Sequence[jax.Array], first: int
) -> tuple[jax.Array, ...]:
    # The last block's keys have none after it, and the first one's queries only the initial state before it.
    blocks = plan.blocks - (1 if side is KEYS else first)
    out_type, scratch = state_shapes(plan, blocks, side), scratch_types(side)

    def body(program: Program, _: Sequence[Any], results: Sequence[Any]) -> None:
        kv, moments = results
        program.store(program.walk(()), kv, moments, program.block)

    return _run(plan, side, name, inputs, packing, (), out_type, scratch, body, blocks, first)


def outputs(
    plan: Plan,
    inputs: dict[str, jax.Array],
    packing: Sequence[jax.Array],
    prefix: Sequence[jax.Array],
    return_state: bool,
) -> tuple[jax.Array, ...]:
    """Return outputs (B, N, H, V), reciprocal normalisers (B, H, N) and, on request, the final state.

    Args:
        inputs: q, k, v.
        prefix: initial state of each block, in the form of `key_sums` for all blocks; or empty.
    """

    def body(program: Program, prefix: Sequence[Any], results: Sequence[Any]) -> None:
        state = program.walk(prefix, lambda chunk, state: mosaic_chunk.read(chunk, state, *results[:2]))
        if return_state:
            last = program.block == plan.blocks - 1
            pl.when(last)(lambda: program.store(state, *results[2:], block=0))

    v = inputs["v"]
    out_type = [jax.ShapeDtypeStruct(v.shape, v.dtype), _vector(plan, 1)]
    out_type += state_shapes(plan, 1) if return_state else []
    scratch = scratch_types(KEYS, ["plain_q"], values_layout(v.shape[-1]))
    return _run(plan, KEYS, "outputs", inputs, packing, prefix, out_type, scratch, body)


def query_gradients(
    plan: Plan, inputs: dict[str, jax.Array], packing: Sequence[jax.Array], prefix: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return shares of the queries' gradients (parts, B, N, H, 16), and e = -do . y (B, H parts, N).

    Args:
        inputs: q, k, v, do (gradient of the outputs), y and rden (reciprocal normalisers).
        prefix: as for `outputs`.
    """

    def body(program: Program, prefix: Sequence[Any], results: Sequence[Any]) -> None:
        mosaic_gradients.write_factors(program)
        program.walk(prefix, lambda chunk, state: mosaic_gradients.read_queries(chunk, state, *results))

    out_type = [_shares(plan), _vector(plan, plan.parts)]
    scratch = scratch_types(KEYS, ["plain_q", "do", "y", "rden"], gradients=True)
    return _run(plan, KEYS, "dq", inputs, packing, prefix, out_type, scratch, body)


def key_and_value_gradients(
    plan: Plan, inputs: dict[str, jax.Array], packing: Sequence[jax.Array], suffix: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return shares of the keys' gradients (parts, B, N, H, 16), and the values' gradients (B, N, H, V).

    Args:
        inputs: q, k, v, do, rden, and e from `query_gradients`.
        suffix: sums after each block, in the form of `query_sums` for all blocks; or empty.
    """

    def body(program: Program, suffix: Sequence[Any], results: Sequence[Any]) -> None:
        mosaic_gradients.write_factors(program)
        program.walk(suffix, lambda chunk, state: mosaic_gradients.read_keys(chunk, state, *results))

    v = inputs["v"]
    out_type = [_shares(plan), jax.ShapeDtypeStruct(v.shape, v.dtype)]
    scratch = scratch_types(QUERIES, ["plain_k", "v"], values_layout(v.shape[-1]), gradients=True)
    return _run(plan, QUERIES, "dkv", inputs, packing, suffix, out_type, scratch, body)


def _run(
    plan: Plan,
    side: Side,
    name: str,
    inputs: dict[str, jax.Array],
    packing: Sequence[jax.Array],
    states: Sequence[jax.Array],
    out_type: Sequence[Any],
    scratch: Any,
    body: Callable[[Program, Sequence[Any], Sequence[Any]], None],
    blocks: int | None = None,
    first: int = 0,
) -> tuple[jax.Array, ...]:
    """Launch programs for `blocks` blocks (default all) from number `first` on.

    `body` gets the running program, and the refs of `states`, the initial ones, and of the results.
    """
    inputs = inputs | dict(zip(("starts", "counts"), packing, strict=False))

    def run(*refs: Any, **scratch: Any) -> None:
        program = Program(plan, side, dict(zip(inputs, refs, strict=False)), scratch, first)
        of_states, results = len(inputs), len(inputs) + len(states)
        body(program, refs[of_states:results], refs[results:])

    options = {"grid": plan.grid(plan.blocks if blocks is None else blocks), "out_type": out_type}
    options |= {"scratch": scratch, "name": f"taylor_{name}_mosaic"}
    return mosaic_launch.run(run, *inputs.values(), *states, **options)


def _vector(plan: Plan, parts: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((plan.batch, plan.heads * parts, plan.length), jnp.float32)


def _shares(plan: Plan) -> jax.ShapeDtypeStruct:
    """Return the shape of shares of a gradient of queries or keys, float32 if there are several to add."""
    dtype = jnp.bfloat16 if plan.parts == 1 else jnp.float32
    return jax.ShapeDtypeStruct((plan.parts, plan.batch, plan.length, plan.heads, features.KEY_SIZE), dtype)


def state_shapes(plan: Plan, blocks: int, side: Side = KEYS) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of the states of `blocks` blocks of each row and head."""
    moments = plan.heads if side is KEYS else plan.heads * plan.parts
    return [
        jax.ShapeDtypeStruct((plan.batch, plan.heads, blocks, plan.values, features.COLUMNS), jnp.float32),
        jax.ShapeDtypeStruct((plan.batch, moments, blocks, features.ROWS, features.KEY_SIZE), jnp.float32),
    ]
