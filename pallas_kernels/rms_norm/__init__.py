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

AXES = {1: "d", 2: "b n", 3: "b n d"}
"""of the arrays, by their number"""


def supports(stream: Any, branch: Any) -> str | None:
    """Return why `add_rms_norm` cannot take these arrays (B, N, D) here, or None if it can."""
    arrays = {"branch": branch} | ({} if stream is None else {"stream": stream})
    return cannot_launch("pallas") or unsupported(arrays, 3, {"branch": MAX_SIZE})


def facts_of(branch: Any, kernel: str) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table; `kernel` is "outputs" or "gradient"."""
    return {"width": pl.next_power_of_2(branch.shape[-1]), "kernel": kernel}


def add_rms_norm(
    stream: jax.Array | None,
    branch: jax.Array,
    scale: jax.Array,
    broken: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    eps: float = 1e-5,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute x = stream + branch + bias and y = x / sqrt(mean(x^2) + eps) * scale.

    Differentiable in all arrays; the gradients take x from y, so that x need not be kept. Arithmetic is
    float32. Works with rows sharded; under `vmap` and for second derivatives the plain formula is used.

    Args:
        stream: (B, N, D), float32, bfloat16 or float16; None for zeros in float32.
        branch: (B, N, D), D up to 8192; its dtype is that of y.
        scale: (D,); one closer to 0 than 2^-100, or 2^-14 for a float16 branch, counts as that.
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
    addends = [branch]
    if stream is not None:
        expect_array("stream", stream, branch.shape)
        addends.insert(0, stream)
    expect_array("scale", scale, branch.shape[-1:])
    if bias is not None:
        expect_array("bias", bias, branch.shape[-1:])
        addends.append(bias)
    if broken is not None:
        expect_array("broken", broken, branch.shape[:2], ("bool",))
        addends.append(jnp.where(broken, jnp.nan, jnp.float32(0)))
    results: Any = _add_norm(eps, variant, scale, tuple(addends))
    x, y, mean = results
    return x, y, mean < jnp.inf


def _options(eps: float, variant: Variant | None, branch: Any, kernel: str) -> dict[str, Any]:
    return {"eps": eps, "variant": variant or choose("rms_norm", Variant, **facts_of(branch, kernel))}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _add_norm(eps: float, variant: Variant | None, scale: Any, addends: Any) -> Any:
    run = functools.partial(kernel.outputs, **_options(eps, variant, addends[0], "outputs"))
    plain = functools.partial(formula, eps=eps)
    operands = ["d", *(AXES[x.ndim] for x in addends)]
    return per_channel(run, plain, operands, [AXES[3], AXES[3], AXES[2]], ["b"])(scale, *addends)


def _forward(eps: float, variant: Variant | None, scale: Any, addends: Any) -> Any:
    results: Any = _add_norm(eps, variant, scale, addends)
    return results, (*results[1:], scale, addends)


def _backward(eps: float, variant: Variant | None, saved: Any, gradients: Any) -> Any:
    y, mean, scale, addends = saved
    kinds = [x.ndim for x in addends]
    options = {"has_stream": kinds.count(3) == 2, "has_bias": 1 in kinds}
    run = functools.partial(kernel.gradient, **options, **_options(eps, variant, y, "gradient"))
    plain = functools.partial(gradient_formula, **options, eps=eps)
    operands, sums = [AXES[n] for n in (3, 2, 1, 3, 3, 2)], ["b d"] * (1 + kinds.count(1))
    results = [AXES[3]] * kinds.count(3) + sums
    found = per_channel(run, plain, operands, results, ["b"])(y, mean, scale, *gradients)
    of_scale, *of_bias = (each.sum(axis=0) for each in found[-len(sums) :])
    of_addends = *found[: -len(sums)], *of_bias, *(jnp.zeros_like(x) for x in addends if x.ndim == 2)
    rounded = [x.astype(like.dtype) for x, like in zip(of_addends, addends, strict=True)]
    return of_scale.astype(scale.dtype), tuple(rounded)


_add_norm.defvjp(_forward, _backward)


def formula(scale: Any, *addends: Any, eps: float) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.outputs` in plain operations."""
    *stream, branch = (x for x in addends if x.ndim == 3)
    wide = jnp.promote_types(addends[0].dtype, jnp.float32)
    x: Any = sum((array[..., None] if array.ndim == 2 else array).astype(wide) for array in addends)
    mean = jnp.mean(x * x, axis=-1)
    scale = scale.astype(wide)
    scale += lax.stop_gradient(kernel.divisor(scale, branch.dtype) - scale)
    y = x * lax.rsqrt(mean + eps)[..., None] * scale
    y = jnp.where((mean < jnp.inf)[..., None], y, 0)
    return x.astype(stream[0].dtype if stream else wide), y.astype(branch.dtype), mean


def gradient_formula(*arrays: Any, has_stream: bool, has_bias: bool, eps: float) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.gradient` in plain operations."""
    y, mean, scale, dx, dy, dmean = arrays
    wide, narrow = jnp.promote_types(dx.dtype, jnp.float32), y.dtype
    y, scale, dy, total = (array.astype(wide) for array in (y, kernel.divisor(scale, narrow), dy, dx))
    mean, dmean = mean[..., None], dmean[..., None]
    is_number, factor = mean < jnp.inf, lax.rsqrt(mean + eps)
    x = y / scale * (2 / y.shape[-1] * dmean / factor - factor * jnp.mean(dy * y, axis=-1, keepdims=True))
    total += jnp.where(is_number, factor * dy * scale + x, 0)
    of_scale, of_branch = (jnp.where(is_number, each, 0) for each in (dy * y / scale, total))
    sums = [each.sum(axis=1) for each in (of_scale, of_branch)[: 1 + has_bias]]
    return *[total.astype(dx.dtype)] * has_stream, of_branch.astype(narrow), *sums
