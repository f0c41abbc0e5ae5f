"""Cross-entropies of logits and their gradient, in one launch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.checks import FLOATS, INTEGERS, expect, expect_array, unsupported
from pallas_kernels.partition import per_channel
from pallas_kernels.softmax_loss import kernel
from pallas_kernels.softmax_loss.kernel import LOWEST, Variant
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "softmax_loss", "supports"]

MAX_LOGITS = 2**31 - 2**20
"""a program's offsets have 32 bits, also those of a last block that is not full"""


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
    run = functools.partial(kernel.gradients, vocab=vocab, dtype=dtype, variant=variant)
    plain = functools.partial(formula, vocab=vocab, dtype=dtype)
    fused = per_channel(run, plain, ["r v", "r", "r"], ["r v", "r"], ["r"])
    gradient, losses = fused(logits, targets.astype(jnp.int32), weights)
    return gradient, losses


def formula(
    logits: Any, targets: Any, weights: Any, *, vocab: int, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Compute the kernel's results in plain operations."""
    token = jnp.arange(logits.shape[-1])
    logits = jnp.where(token < vocab, logits, LOWEST)
    is_target = token == targets[:, None]
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    losses = log_sum - jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    gradient = (jnp.exp(logits - log_sum[:, None]) - is_target) * weights[:, None]
    return gradient.astype(dtype), losses
