"""Decoding step of a short convolution (Based, arXiv 2402.18668, section 4.2), fused and in place."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.checks import INTEGERS, expect_array, expect_power_of_two, unsupported
from pallas_kernels.conv_step import kernel
from pallas_kernels.conv_step.kernel import Variant
from pallas_kernels.partition import per_channel
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "conv_step", "supports"]

MAX_TAPS = 8


def supports(inner: Any, taps: Any) -> str | None:
    """Return why `conv_step` cannot take inner (B, 2, E) and taps (T, E) here, or None if it can."""
    reason = cannot_launch("pallas") or unsupported({"inner": inner}, 3, {})
    reason = reason or unsupported({"taps": taps}, 2, {})
    if reason is None and not 2 <= taps.shape[0] <= MAX_TAPS:
        return f"a convolution has {taps.shape[0]} taps; the kernel takes 2 to {MAX_TAPS}"
    return reason


def facts_of(inner: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    return {"batch": inner.shape[0], "channels": inner.shape[-1]}


def conv_step(
    inner: jax.Array,
    history: jax.Array,
    age: jax.Array,
    taps: jax.Array,
    bias: jax.Array | None = None,
    *,
    gated: bool = False,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute y = silu(conv(inner[:, 0]) + bias), times inner[:, 1] if `gated`, and shift the history.

    Arithmetic is float32. Under `jit`, a donated history is overwritten. Works with rows and channels
    sharded; under `vmap` and in reverse mode `formula` computes it.

    Args:
        inner: (B, 2, E), inputs of one token per row; float32, bfloat16 or float16.
        history: (B, T - 1, E), inputs before it, oldest first.
        age: (B,) integers, at least the number of them that belong to the row's segment.
        taps: (T, E), oldest first, T from 2 to 8.
        bias: (E,) or None.
        gated: whether the second half multiplies the outputs.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        y: (B, E) in inner's dtype; the new history.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    reason = supports(inner, taps)
    if reason:
        raise ValueError(f"conv_step: {reason}")
    batch, _, channels = inner.shape
    expect_array("inner", inner, (batch, 2, channels))
    expect_array("history", history, (batch, taps.shape[0] - 1, channels))
    expect_array("age", age, (batch,), INTEGERS)
    expect_array("taps", taps, (taps.shape[0], channels))
    given = [] if bias is None else [bias]
    for array in given:
        expect_array("bias", array, (channels,))
    variant = variant or choose("conv_step", Variant, **facts_of(inner))
    expect_power_of_two("channels", variant.channels)
    run = functools.partial(kernel.step, gated=gated, variant=variant)
    plain = functools.partial(formula, gated=gated)
    operands = ["b two e", "b h e", "b", "t e", *["e"] * len(given)]
    step = per_channel(run, plain, operands, ["b e", "b h e"], ["b", "e"])
    y, history = step(inner, history, age.astype(jnp.int32), taps, *given)
    return y, history


def formula(inner, history, age, taps, *bias, gated: bool):
    """Compute the kernel's result in plain operations."""
    f32, count = jnp.float32, taps.shape[0]
    back = jnp.arange(count - 1, 0, -1)  # age of the history's inputs
    earlier = jnp.where((age[:, None] >= back)[..., None], history.astype(f32), 0)
    window = jnp.concatenate([earlier, inner[:, :1].astype(f32)], axis=1)
    total = jnp.einsum("bte,te->be", window, taps.astype(f32)) + sum(x.astype(f32) for x in bias)
    out = jax.nn.silu(total)
    if gated:
        out = out * inner[:, 1].astype(f32)
    shifted = jnp.concatenate([history[:, 1:], inner[:, :1].astype(history.dtype)], axis=1)
    return out.astype(inner.dtype), shifted
