"""Backward pass 3b: gradients of keys and values, a reverse scan with the sums over later queries.

    T = sum phi(q) dn^T, and the moments of q weighted by dd
    dv = p^T dn + phi(k) T,   dk = dx^T q + phi'(k) (v T^T) + first + second k

Scores are computed transposed, keys by queries, so that no matrix is transposed in registers.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention import blocks, dq, specs
from pallas_kernels.taylor_attention.blocks import Chunk, Packing, Plan, State
from pallas_kernels.taylor_attention.dq import share_of_normaliser, slope
from pallas_kernels.taylor_attention.outputs import scaled_scores
from pallas_kernels.taylor_attention.sums import output_gradients


def key_or_value_gradient(
    plan: Plan,
    tables: Any,
    arrays: Sequence[jax.Array],
    packing: Sequence[jax.Array],
    suffix: tuple[jax.Array, ...] | None,
    wanted: str,
) -> jax.Array:
    """Return dk (B, N, H, K) or dv (B, N, H, V), in the input's dtype.

    One scan for both would need too many registers.

    Args:
        tables, arrays, packing: as in `query_gradients`.
        suffix: (B, H, blocks, size, V) and (B, H, blocks, K + 1, last), the sums after each block; None for
            zeros.
        wanted: "dk" or "dv".
    """

    def body(q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, rden_ref: Any, dd_ref: Any, *refs: Any) -> None:
        here, steps = specs.running(plan, refs, suffix is not None), plan.block // plan.chunk
        share = share_of_normaliser(plan, here.tile)

        def step(i: Any, state: State) -> State:
            gradient: Any = None
            chunk = here.chunk(steps - 1 - i)
            k = chunk.keys(k_ref)
            # Load late, and twice unless from shared memory (`stages`): this kernel is short of registers.
            v = chunk.values(v_ref, here.tile) if wanted == "dk" else None
            if v is None:
                features = here.key_features.at(i)
                for tile in reversed(range(len(state.tiles))):
                    phi = features.by_token(k, tile)
                    gradient = blocks.read_tile(plan, state, tile, phi, gradient)
            else:
                gradient = dq.gradient_through_state(plan, here.key_features.at(i), state, k, v, share)
            dn, x = output_gradients(chunk, do_ref, rden_ref, here.tile), chunk.queries(q_ref)
            dd = None if v is None else chunk.numbers(dd_ref) * share
            visible, sees = _visibility(chunk, here.packing)
            gradient = gradient if sees is None else jnp.where(sees[:, None], gradient, 0.0)
            scores = scaled_scores(plan, k, x)
            if v is None or dd is None:
                p = jnp.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
                chunk.put_values(here.outputs[0], plan.dot(p, dn, (1, 0), gradient), here.tile)
            else:
                dscores = plan.dot(v, dn, (1, 1)) + dd[None, :]
                dscores = jnp.where(visible, dscores * slope(plan, scores), 0.0)
                chunk.put_keys(here.outputs[0], plan.dot(dscores, x, (1, 0), gradient))
            if plan.stages == 1:
                x, dn = chunk.queries(q_ref), output_gradients(chunk, do_ref, rden_ref, here.tile)
            stays, dn, dd = chunk.leaving(dn, chunk.numbers(dd_ref))
            return blocks.add_tokens(plan, here.query_features.at(i), state, stays, x, dn, dd, 0.0)

        here.walk(step)

    _, k, v, *_ = arrays
    results = [("bnhv", v.dtype)] if wanted == "dv" else [("tbnhk", dq.share_dtype(plan, k))]
    (result,) = specs.run(plan, body, wanted, arrays, dq.AXES, packing, tables, results, states=suffix)
    return result if wanted == "dv" else dq.sum_of_shares(result, k)


def _visibility(chunk: Chunk, packing: Packing | None) -> tuple[jax.Array, Any]:
    """Return `outputs.visibility` with keys along the rows, and which keys are visible after the chunk."""
    token = jnp.arange(chunk.plan.chunk)
    visible = token[:, None] <= token[None, :]
    if packing is None:
        return visible, None
    sees = chunk.index >= chunk.next_start
    return visible & (chunk.index[:, None] >= chunk.starts()[None, :]), sees
