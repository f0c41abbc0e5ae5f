"""Cross-entropies of logits and their gradient, in one launch, with one program per token.

    loss = log sum_v exp(x_v) - x_target;   dx_v = weight (exp(x_v) / sum_u exp(x_u) - [v = target])

A program reads its row twice: for the sum, from the first column, and for the gradient, from the last. So the
second read begins with what the first left in the L2 cache.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.checks import FLOATS, INTEGERS, expect, expect_array, unsupported
from pallas_kernels.launch import launch, load, store
from pallas_kernels.partition import per_channel
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "softmax_loss", "supports"]

f32 = jnp.float32

MAX_LOGITS = 2**31 - 2**20
"""a program's offsets have 32 bits, also those of a last block that is not full"""

LOWEST = float(jnp.finfo(f32).min)
"""A logit whose exponential is 0; differences of infinities would be NaN."""


@dataclass(frozen=True)
class Variant:
    """Block sizes."""

    columns: int = 4096
    """logits in registers at a time, a power of two"""
    warps: int = 8
    stages: int = 1


def supports(logits: Any) -> str | None:
    """Return why `softmax_loss` cannot take logits (R, V) here, or None if it can."""
    reason = cannot_launch("pallas") or unsupported({"logits": logits}, 2, {})
    if reason is None and logits.dtype != jnp.float32:
        return f"logits has dtype {logits.dtype}; the kernel takes float32"
    if reason is None and logits.shape[0] * logits.shape[1] > MAX_LOGITS:
        return f"logits has shape {tuple(logits.shape)}; the kernel takes up to {MAX_LOGITS} numbers"
    return reason


def softmax_loss(
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    *,
    vocab: int | None = None,
    dtype: Any = jnp.float32,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute losses log sum exp(logits) - logits[target] and the gradient of their weighted sum.

    Works with rows sharded; under `vmap` and in reverse mode `formula` computes it.

    Args:
        logits: (R, V), float32.
        targets: (R,) integers; a row whose target is no column has the loss log sum exp(logits).
        weights: (R,), float32.
        vocab: columns that count, from the first; None for all.
        dtype: of the gradient.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        gradient: (R, V) of sum(weights * losses) in logits; 0 in columns that do not count.
        losses: (R,), float32.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    if reason := supports(logits):
        raise ValueError(f"softmax_loss: {reason}")
    vocab = logits.shape[1] if vocab is None else vocab
    expect(0 < vocab <= logits.shape[1], "vocab", vocab, f"1 to {logits.shape[1]}")
    expect_array("targets", targets, logits.shape[:1], INTEGERS)
    expect_array("weights", weights, logits.shape[:1], ("float32",))
    expect(jnp.dtype(dtype).name in FLOATS, "dtype", str(dtype), f"one of {', '.join(FLOATS)}")
    variant = variant or choose("softmax_loss", Variant)
    run = functools.partial(gradients, vocab=vocab, dtype=dtype, variant=variant)
    plain = functools.partial(formula, vocab=vocab, dtype=dtype)
    fused = per_channel(run, plain, ["r v", "r", "r"], ["r v", "r"], ["r"])
    # A block may extend beyond the columns. Compare before the cast, which wraps around.
    targets = jnp.where((targets >= 0) & (targets < vocab), targets, -1).astype(jnp.int32)
    gradient, losses = fused(logits, targets, weights)
    return gradient, losses


def formula(
    logits: Any, targets: Any, weights: Any, *, vocab: int, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Compute the kernel's results in plain operations."""
    token = jnp.arange(logits.shape[-1])
    logits = jnp.where(token < vocab, logits, LOWEST)
    is_target = (token == targets[:, None]) & (token < vocab)
    top = logits.max(axis=-1)
    log_total = jax.nn.logsumexp(logits - top[:, None], axis=-1)
    losses = (top - jnp.sum(jnp.where(is_target, logits, 0), axis=-1)) + log_total
    gradient = (jnp.exp((logits - top[:, None]) - log_total[:, None]) - is_target) * weights[:, None]
    return gradient.astype(dtype), losses


def gradients(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, *, vocab: int, dtype: Any, variant: Variant
) -> tuple[jax.Array, jax.Array]:
    """Return dx (R, V) in `dtype` and the losses (R,)."""
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
        log_total = jnp.log(jnp.sum(total * jnp.exp(most - top)))
        loss_ref[...] = (top - jnp.sum(of_target)) + log_total  # a small loss keeps its digits

        def differentiate(turn: Any, carry: Any) -> Any:
            index, token, x = block(blocks - 1 - turn)
            p = jnp.exp((x - top) - log_total)
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
