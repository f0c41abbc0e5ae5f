"""Sum and RMS norm between the branches of a residual model, and their gradients, in one pass each."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.checks import expect_array, unsupported
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
    return cannot_launch("pallas") or unsupported(arrays, 3, {"stream": MAX_SIZE})


def facts_of(stream: Any, kernel: str) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table; `kernel` is "outputs" or "gradient"."""
    return {"width": pl.next_power_of_2(stream.shape[-1]), "kernel": kernel}


def add_rms_norm(
    stream: jax.Array,
    branch: jax.Array,
    scale: jax.Array,
    broken: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float = 1e-5,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute x = stream + branch + bias and y = x / sqrt(mean(x^2) + eps) * scale.

    Differentiable in all arrays. Arithmetic is float32. Works with rows sharded; under `vmap` and for second
    derivatives the plain formula is used.

    Args:
        stream: (B, N, D), D up to 8192; float32, bfloat16 or float16.
        branch: (B, N, D); its dtype is that of y.
        scale: (D,).
        broken: (B, N) booleans, where x is NaN whatever the arrays hold, or None.
        bias: (D,), or None for 0.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        x: (B, N, D) in stream's dtype.
        y: (B, N, D) in branch's dtype, zeros where x is not a number or its sum of squares infinite.
        is_number: (B, N), False there. There y has no gradient, and branch and bias have none at all.

    Raises:
        ValueError: an array of a shape or dtype that the kernel does not take.
    """
    if reason := supports(stream, branch):
        raise ValueError(f"add_rms_norm: {reason}")
    expect_array("branch", branch, stream.shape)
    expect_array("scale", scale, stream.shape[-1:])
    addends = []
    if bias is not None:
        expect_array("bias", bias, stream.shape[-1:])
        addends.append(bias)
    if broken is not None:
        expect_array("broken", broken, stream.shape[:2], ("bool",))
        addends.append(jnp.where(broken, jnp.nan, jnp.float32(0)))
    arrays = stream, branch, scale
    results: Any = _add_norm(eps, variant, *arrays, tuple(addends))
    x, y, mean = results
    return x, y, mean < jnp.inf


def _options(eps: float, variant: Variant | None, stream: Any, kernel: str) -> dict[str, Any]:
    return {"eps": eps, "variant": variant or choose("rms_norm", Variant, **facts_of(stream, kernel))}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _add_norm(eps: float, variant: Variant | None, stream: Any, branch: Any, scale: Any, addends: Any) -> Any:
    run = functools.partial(kernel.outputs, **_options(eps, variant, stream, "outputs"))
    plain = functools.partial(formula, eps=eps)
    operands = [TOKENS, TOKENS, "d", *("d" if x.ndim == 1 else "b n" for x in addends)]
    sharded = per_channel(run, plain, operands, [TOKENS, TOKENS, "b n"], ["b"])
    return sharded(stream, branch, scale, *addends)


def _forward(eps: float, variant: Variant | None, stream: Any, branch: Any, scale: Any, addends: Any) -> Any:
    results: Any = _add_norm(eps, variant, stream, branch, scale, addends)
    return results, (results[0], scale, addends)


def _backward(eps: float, variant: Variant | None, saved: Any, gradients: Any) -> Any:
    (x, scale, addends), (dx, dy, _) = saved, gradients
    has_bias = any(array.ndim == 1 for array in addends)
    run = functools.partial(kernel.gradient, has_bias=has_bias, **_options(eps, variant, x, "gradient"))
    plain = functools.partial(gradient_formula, has_bias=has_bias, eps=eps)
    results = [TOKENS, TOKENS, *["b d"] * (1 + has_bias)]
    gradient = per_channel(run, plain, [TOKENS, "d", TOKENS, TOKENS], results, ["b"])
    of_stream, of_branch, *sums = gradient(x, scale, dy, dx)
    of_scale, *of_bias = (each.sum(axis=0) for each in sums)
    rest = tuple(
        of_bias[0].astype(array.dtype) if array.ndim == 1 else jnp.zeros_like(array) for array in addends
    )
    return of_stream, of_branch, of_scale.astype(scale.dtype), rest


_add_norm.defvjp(_forward, _backward)


def formula(stream: Any, branch: Any, scale: Any, *addends: Any, eps: float) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.outputs` in plain operations."""
    wide = jnp.promote_types(stream.dtype, jnp.float32)
    x = stream.astype(wide) + branch.astype(wide)
    x += sum(array.astype(wide) if array.ndim == 1 else array[..., None] for array in addends)
    mean = jnp.mean(x * x, axis=-1)
    y = x * lax.rsqrt(mean + eps)[..., None] * scale.astype(wide)
    y = jnp.where((mean < jnp.inf)[..., None], y, 0)
    return x.astype(stream.dtype), y.astype(branch.dtype), mean


def gradient_formula(
    x: Any, scale: Any, dy: Any, dx: Any, *, has_bias: bool, eps: float
) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.gradient` in plain operations."""
    wide, narrow = jnp.promote_types(x.dtype, jnp.float32), dy.dtype
    x, scale, dy, total = (array.astype(wide) for array in (x, scale, dy, dx))
    mean, product = (jnp.mean(array, axis=-1, keepdims=True) for array in (x * x, dy * scale * x))
    factor, is_number = lax.rsqrt(mean + eps), mean < jnp.inf
    total += jnp.where(is_number, factor * (dy * scale - x * (factor**2 * product)), 0)
    of_scale, of_branch = (jnp.where(is_number, each, 0) for each in (dy * x * factor, total))
    sums = [each.sum(axis=1) for each in (of_scale, of_branch)[: 1 + has_bias]]
    return total.astype(dx.dtype), of_branch.astype(narrow), *sums
