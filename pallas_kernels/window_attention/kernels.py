"""The kernels. Scores are to base 2, s = log2(e) scale q . k.

Forward, each program scans the keys visible to its block of queries, with an online softmax:

    m' = max(m, max_j s_j),  w = 2^(s - m'),  l = 2^(m - m') l + sum w,  y = 2^(m - m') y + w v;  y / l

Backward, weights are recomputed from the log2-sums m + log2(l), once by query and once by key:

    w = 2^(s - log2_sum),  d = rowsum(dy y),  ds = w (dy v^T - d)
    dq = scale ds k,  dk = scale ds^T q,  dv = w^T dy

`dq` scans keys as the forward pass does, and writes d. `dkv` has a program per block of keys that scans the
queries that see them, of all heads that share the key, so there are no sums across programs.
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
        total = jnp.where(total == 0, 1.0, total)  # queries without visible keys: y stays 0
        queries.store(results[0], y / total[:, None], plan.value_size)
        queries.put_numbers(results[1], largest + jnp.log2(total))

    axes, results = ("bnhrk", "bnhk", "bnhv"), [("bnhrv", arrays[2].dtype), ("bhrn", f32)]
    return plan.run(body, "outputs", plan.queries, arrays, axes, packing, results)


def key_blocks(plan: Plan, start: Any) -> tuple[Any, Any]:
    """Return first and last + 1 of the blocks of keys visible to queries from `start` on."""
    first = quotient(jnp.maximum(start - plan.left, 0), plan.keys)
    end = jnp.minimum(start + plan.queries, plan.length)
    return first, quotient(end + (plan.keys - 1), plan.keys)


def query_gradients(
    plan: Plan, arrays: Sequence[jax.Array], packing: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return dq (B, N, G, R, K) and d (B, G, R, N).

    Args:
        arrays: q (B, N, G, R, K), k (B, N, G, K), v (B, N, G, V), y and dy (B, N, G, R, V), log2-sums.
        packing: see `Plan.run`.
    """

    def body(start: Any, inputs: Sequence[Any], packing: Packing | None, results: Sequence[Any]) -> None:
        q_ref, k_ref, v_ref, y_ref, dy_ref, log_sum_ref = inputs
        queries = Block(plan, start, plan.queries, packing)
        y, dy = (queries.load(ref, plan.value_size) for ref in (y_ref, dy_ref))
        d = jnp.sum(y.astype(f32) * dy.astype(f32), axis=1)
        queries.put_numbers(results[1], d)
        q, oldest = queries.load(q_ref, plan.key_size), queries.oldest()
        log_sum = queries.numbers(log_sum_ref)

        def step(i: Any, dq: Any) -> Any:
            keys = Block(plan, i * plan.keys, plan.keys, packing)
            k, v = keys.load(k_ref, plan.key_size), keys.load(v_ref, plan.value_size)
            scores = plan.dot(q, k, (1, 1)) * (plan.scale * LOG2_E)
            mask = visible(queries, oldest, keys)
            weights = jnp.where(mask, jnp.exp2(scores - log_sum[:, None]), 0.0)
            dscores = weights * (plan.dot(dy, v, (1, 1)) - d[:, None])
            return plan.dot(dscores, k, (1, 0), dq)

        dq = jnp.zeros((plan.queries, padded(plan.key_size)), f32)
        dq = lax.fori_loop(*key_blocks(plan, start), step, dq)
        queries.store(results[0], dq * plan.scale, plan.key_size)

    axes = ("bnhrk", "bnhk", "bnhv", "bnhrv", "bnhrv", "bhrn")
    results = [("bnhrk", arrays[0].dtype), ("bhrn", f32)]
    return plan.run(body, "dq", plan.queries, arrays, axes, packing, results)


def key_and_value_gradients(
    plan: Plan, arrays: Sequence[jax.Array], packing: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return dk (B, N, G, K) and dv (B, N, G, V).

    Args:
        arrays: q (B, N, G, R, K), k (B, N, G, K), v (B, N, G, V), dy (B, N, G, R, V), log2-sums, d.
        packing: see `Plan.run`.
    """

    def body(start: Any, inputs: Sequence[Any], packing: Packing | None, results: Sequence[Any]) -> None:
        q_ref, k_ref, v_ref, dy_ref, log_sum_ref, d_ref = inputs
        keys = Block(plan, start, plan.keys, packing)
        k, v = keys.load(k_ref, plan.key_size), keys.load(v_ref, plan.value_size)

        def step(i: Any, r: Any, sums: Any) -> Any:
            dk, dv = sums
            queries = Block(plan, i * plan.queries, plan.queries, packing)
            q, dy = queries.load(q_ref, plan.key_size, r), queries.load(dy_ref, plan.value_size, r)
            log_sum, d = queries.numbers(log_sum_ref, r), queries.numbers(d_ref, r)
            mask = _visible_by_key(keys, queries, queries.oldest())
            scores = plan.dot(k, q, (1, 1)) * (plan.scale * LOG2_E)  # (keys, queries)
            weights = jnp.where(mask, jnp.exp2(scores - log_sum[None, :]), 0.0)
            dv = plan.dot(weights, dy, (1, 0), dv)
            dscores = weights * (plan.dot(v, dy, (1, 1)) - d[None, :])
            return plan.dot(dscores, q, (1, 0), dk), dv

        last = jnp.minimum(start + (plan.keys - 1 + plan.left), plan.length - 1)
        first, end = quotient(start, plan.queries), quotient(last, plan.queries) + 1

        def of_head(r: Any, sums: Any) -> Any:
            return lax.fori_loop(first, end, lambda i, sums: step(i, r, sums), sums)

        sums = tuple(jnp.zeros((plan.keys, padded(n)), f32) for n in (plan.key_size, plan.value_size))
        dk, dv = of_head(0, sums) if plan.shared == 1 else lax.fori_loop(0, plan.shared, of_head, sums)
        keys.store(results[0], dk * plan.scale, plan.key_size)
        keys.store(results[1], dv, plan.value_size)

    axes = ("bnhrk", "bnhk", "bnhv", "bnhrv", "bhrn", "bhrn")
    results = [("bnhk", arrays[1].dtype), ("bnhv", arrays[2].dtype)]
    return plan.run(body, "dkv", plan.keys, arrays, axes, packing, results, by_key_head=True)


def _visible_by_key(keys: Block, queries: Block, oldest: jax.Array) -> jax.Array:
    """Return (keys, queries), the transpose of `visible`."""
    younger = keys.index[:, None] <= queries.index[None, :]
    return younger & (keys.index[:, None] >= oldest[None, :])
