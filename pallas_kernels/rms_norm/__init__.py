"""Sum and RMS norm between the branches of a residual model, and their gradients, in one pass each."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.checks import expect_array, unsupported
from pallas_kernels.devices import cannot_run
from pallas_kernels.partition import per_channel
from pallas_kernels.rms_norm import kernel
from pallas_kernels.rms_norm.kernel import Variant
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "add_rms_norm", "supports"]

MAX_SIZE = 8192
"""largest D: a program holds whole tokens in registers"""

TOKENS = "b n d"


def supports(stream: Any, branch: Any) -> str | None:
    """Return why `add_rms_norm` cannot take these arrays (B, N, D) here, or None if it can."""
    arrays = {"stream": stream, "branch": branch}
    return cannot_run() or cannot_launch("pallas") or unsupported(arrays, 3, {"stream": MAX_SIZE})


def facts_of(stream: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    return {"width": pl.next_power_of_2(stream.shape[-1])}


def add_rms_norm(
    stream: jax.Array,
    branch: jax.Array,
    scale: jax.Array,
    broken: jax.Array | None = None,
    *,
    eps: float = 1e-5,
    fused: bool = True,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute x = stream + branch and y = x / sqrt(mean(x^2) + eps) * scale, differentiable in all arrays.

    Arithmetic is float32. Works with rows sharded; under `vmap` and for second derivatives the plain formula
    is used.

    Args:
        stream: (B, N, D), D up to 8192; float32, bfloat16 or float16.
        branch: (B, N, D); its dtype is that of y.
        scale: (D,).
        broken: (B, N) booleans, where x is NaN whatever the arrays hold, or None.
        fused: False to compute `formula` with JAX's gradient, for a program that must have no kernel.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        x: (B, N, D) in stream's dtype.
        y: (B, N, D) in branch's dtype, zeros where x is not a number or its sum of squares infinite.
        is_number: (B, N), False there. There y has no gradient, and branch has none at all.

    Raises:
        ValueError: an array of a shape or dtype that the kernel does not take.
    """
    if reason := supports(stream, branch):
        raise ValueError(f"add_rms_norm: {reason}")
    expect_array("branch", branch, stream.shape)
    expect_array("scale", scale, stream.shape[-1:])
    marks = ()
    if broken is not None:
        expect_array("broken", broken, stream.shape[:2], ("bool",))
        marks = (jnp.where(broken, jnp.nan, jnp.float32(0)),)
    variant = choose("rms_norm", Variant, **facts_of(stream)) if variant is None else variant
    arrays = stream, branch, scale
    results: Any = _add_norm(eps, variant, *arrays, marks) if fused else formula(*arrays, *marks, eps=eps)
    x, y, mean = results
    return x, y, mean < jnp.inf


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _add_norm(eps: float, variant: Variant, stream: Any, branch: Any, scale: Any, marks: Any) -> Any:
    run = functools.partial(kernel.outputs, eps=eps, variant=variant)
    plain = functools.partial(formula, eps=eps)
    operands, results = [TOKENS, TOKENS, "d", *["b n"] * len(marks)], [TOKENS, TOKENS, "b n"]
    return per_channel(run, plain, operands, results, ["b"])(stream, branch, scale, *marks)


def _forward(eps: float, variant: Variant, stream: Any, branch: Any, scale: Any, marks: Any) -> Any:
    results: Any = _add_norm(eps, variant, stream, branch, scale, marks)
    return results, (results[0], scale, marks)


def _backward(eps: float, variant: Variant, saved: Any, gradients: Any) -> Any:
    (x, scale, marks), (dx, dy, _) = saved, gradients
    run = functools.partial(kernel.gradient, eps=eps, variant=variant)
    plain = functools.partial(gradient_formula, eps=eps)
    gradient = per_channel(run, plain, [TOKENS, "d", TOKENS, TOKENS], [TOKENS, TOKENS, "b d"], ["b"])
    of_stream, of_branch, of_scale = gradient(x, scale, dy, dx)
    none = tuple(jnp.zeros_like(mark) for mark in marks)
    return of_stream, of_branch, of_scale.sum(axis=0).astype(scale.dtype), none


_add_norm.defvjp(_forward, _backward)


def formula(stream: Any, branch: Any, scale: Any, *marks: Any, eps: float) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.outputs` in plain operations."""
    wide = jnp.promote_types(stream.dtype, jnp.float32)
    x = stream.astype(wide) + branch.astype(wide) + sum(mark[..., None] for mark in marks)
    mean = jnp.mean(x * x, axis=-1)
    y = x * lax.rsqrt(mean + eps)[..., None] * scale.astype(wide)
    y = jnp.where((mean < jnp.inf)[..., None], y, 0)
    return x.astype(stream.dtype), y.astype(branch.dtype), mean


def gradient_formula(x: Any, scale: Any, dy: Any, dx: Any, *, eps: float) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.gradient` in plain operations."""
    wide, narrow = jnp.promote_types(x.dtype, jnp.float32), dy.dtype
    x, scale, dy, total = (array.astype(wide) for array in (x, scale, dy, dx))
    mean, product = (jnp.mean(array, axis=-1, keepdims=True) for array in (x * x, dy * scale * x))
    factor, is_number = lax.rsqrt(mean + eps), mean < jnp.inf
    total += jnp.where(is_number, factor * (dy * scale - x * (factor**2 * product)), 0)
    of_scale = jnp.where(is_number, dy * x * factor, 0).sum(axis=1)
    return total.astype(dx.dtype), jnp.where(is_number, total, 0).astype(narrow), of_scale
