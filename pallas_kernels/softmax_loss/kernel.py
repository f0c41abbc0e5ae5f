"""The loss of logits and its gradient, in one program per token.

    loss = log sum_v exp(x_v) - x_target;   dx_v = weight (exp(x_v) / sum_u exp(x_u) - [v = target])

A program reads its row twice: for the sum, from the first column, and for the gradient, from the last. So the
second read begins with what the first left in the L2 cache.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import launch, load, store

f32 = jnp.float32

LOWEST = float(jnp.finfo(f32).min)
"""A logit whose exponential is 0; differences of infinities would be NaN."""


@dataclass(frozen=True)
class Variant:
    """Block sizes."""

    columns: int = 4096
    """logits in registers at a time, a power of two"""
    warps: int = 8
    stages: int = 1


def gradients(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, *, vocab: int, dtype: Any, variant: Variant
) -> tuple[jax.Array, jax.Array]:
    """Return dx (R, V) in `dtype` and the losses (R,), arguments as for `pallas_kernels.softmax_loss`."""
    rows, width = logits.shape
    columns, blocks = variant.columns, pl.cdiv(width, variant.columns)

    def program(*refs: Any) -> None:
        x_ref, target_ref, weight_ref, of_x_ref, loss_ref = refs
        target, weight = target_ref[...], weight_ref[...]

        def block(turn: Any) -> tuple[Any, jax.Array, jax.Array]:
            token = turn * columns + jnp.arange(columns, dtype=jnp.int32)
            index = (pl.ds(turn * columns, columns),)
            return index, token, load(x_ref, index, token < vocab, LOWEST)

        def add(turn: Any, sums: Any) -> Any:
            most, total, of_target = sums
            _, token, x = block(turn)
            change = x - most
            lesser = jnp.exp(-jnp.abs(change))  # the smaller one's share of the larger one
            total = jnp.where(change > 0, total * lesser + 1, total + lesser)
            return jnp.maximum(most, x), total, jnp.where(token == target, x, of_target)

        zeros = jnp.zeros((columns,), f32)
        start = jnp.full((columns,), LOWEST, f32), zeros, zeros
        most, total, of_target = lax.fori_loop(0, blocks, add, start)
        top = jnp.max(most)
        log_sum = top + jnp.log(jnp.sum(total * jnp.exp(most - top)))
        loss_ref[...] = log_sum - jnp.sum(of_target)

        def differentiate(turn: Any, carry: Any) -> Any:
            index, token, x = block(blocks - 1 - turn)
            p = jnp.exp(x - log_sum)
            store(of_x_ref, index, (p - jnp.where(token == target, 1.0, 0.0)) * weight, token < width)
            return carry

        lax.fori_loop(0, blocks, differentiate, 0)

    # A block extends beyond its array; masks keep every access inside.
    row = pl.BlockSpec((None, blocks * columns), lambda row: (row, 0))
    number = pl.BlockSpec((None,), lambda row: (row,))
    like = jax.ShapeDtypeStruct
    return launch(
        program,
        logits,
        targets,
        weights,
        grid=(rows,),
        in_specs=[row, number, number],
        out_specs=[row, number],
        out_shape=[like(logits.shape, dtype), like((rows,), f32)],
        warps=variant.warps,
        stages=variant.stages,
        name="softmax_loss",
    )
