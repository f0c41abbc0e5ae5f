"""Forward pass: each program scans the keys visible to its block of queries, with an online softmax.

    m' = max(m, max_j s_j),  w = 2^(s - m'),  l = 2^(m - m') l + sum w,  y = 2^(m - m') y + w v;  y / l

Scores are to base 2, s = log2(e) scale q . k. The backward pass uses the log2-sums m + log2(l), float32.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.launch import quotient
from pallas_kernels.window_attention.blocks import LOWEST, Block, Packing, Plan, f32, padded, visible

LOG2_E = math.log2(math.e)


def outputs(plan: Plan, arrays: Sequence[jax.Array], packing: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Return y (B, N, G, R, V) and log2-sums (B, G, R, N).

    Args:
        arrays: q (B, N, G, R, K), k (B, N, G, K), v (B, N, G, V).
        packing: see `Plan.run`.
    """

    def body(start: Any, inputs: Sequence[Any], packing: Packing | None, results: Sequence[Any]) -> None:
        q_ref, k_ref, v_ref = inputs
        queries = Block(plan, start, plan.queries, packing)
        q, oldest = queries.load(q_ref, plan.key_size), queries.oldest()

        def step(i: Any, sums: Any) -> Any:
            largest, total, y = sums
            keys = Block(plan, i * plan.keys, plan.keys, packing)
            k, v = keys.load(k_ref, plan.key_size), keys.load(v_ref, plan.value_size)
            mask = visible(queries, oldest, keys)
            scores = jnp.where(mask, plan.dot(q, k, (1, 1)) * (plan.scale * LOG2_E), LOWEST)
            larger = jnp.maximum(largest, jnp.max(scores, axis=1))
            weights = jnp.where(mask, jnp.exp2(scores - larger[:, None]), 0.0)
            shrink = jnp.exp2(largest - larger)
            y = plan.dot(weights, v, (1, 0), y * shrink[:, None])
            return larger, total * shrink + jnp.sum(weights, axis=1), y

        largest = jnp.full((plan.queries,), LOWEST, f32)
        y = jnp.zeros((plan.queries, padded(plan.value_size)), f32)
        sums = lax.fori_loop(*key_blocks(plan, start), step, (largest, jnp.zeros_like(largest), y))
        largest, total, y = sums
        total = jnp.where(total > 0, total, 1.0)  # queries without visible keys: y stays 0
        queries.store(results[0], y / total[:, None], plan.value_size)
        queries.put_numbers(results[1], largest + jnp.log2(total))

    axes, results = ("bnhrk", "bnhk", "bnhv"), [("bnhrv", arrays[2].dtype), ("bhrn", f32)]
    return plan.run(body, "outputs", plan.queries, arrays, axes, packing, results)


def key_blocks(plan: Plan, start: Any) -> tuple[Any, Any]:
    """Return first and last + 1 of the blocks of keys visible to queries from `start` on."""
    first = quotient(jnp.maximum(start - plan.left, 0), plan.keys)
    end = jnp.minimum(start + plan.queries, plan.length)
    return first, quotient(end + (plan.keys - 1), plan.keys)
