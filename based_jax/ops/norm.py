"""Root-mean-square and layer normalisation, computed in float32 whatever the input dtype."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import pallas_kernels
from based_jax.ops.core import products
from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.ops.core.op import op
from based_jax.ops.core.products import PendingNorm
from based_jax.ops.core.sharding import keep_tokens
from based_jax.typing import Array, Bool, Float
from based_jax.validate import expect_array


@op()
def rms_norm(
    x: Float[Array, "... D"], scale: Float[Array, "*heads D"], eps: float = 1e-5
) -> Float[Array, "... D"]:
    """Return x / sqrt(mean(x^2) + eps) * scale over the last axis, in the dtype of x.

    The scale may have more of x's last axes: (H, D) gives each head its own scales.
    """
    _expect_vectors(x)
    _expect_last_axes("scale", scale, x)
    dtype = accumulation_dtype(x)
    y = x.astype(dtype)
    y = y * lax.rsqrt(_mean_square(y, eps))
    return (y * scale.astype(dtype)).astype(x.dtype)


def add_rms_norm(
    stream: Float[Array, "B N D"] | None,
    branch: Float[Array, "B N D"],
    scale: Float[Array, " D"],
    broken: Bool[Array, "B N"] | None = None,
    bias: Float[Array, " D"] | None = None,
    *,
    eps: float = 1e-5,
    dtype: Any = jnp.float32,
    pending: bool = False,
) -> tuple[Any, Float[Array, "B N D"] | PendingNorm, Bool[Array, "B N"] | None]:
    """Add a branch and its bias, NaN at broken tokens, to the residual stream, and normalise the sum.

    Without a stream the sum is the branch, see `residual_sum`. On a GPU one kernel does this, and
    another computes the gradients, where XLA takes several passes. Single tokens, as in decoding, take the
    kernel on GPUs on which it was measured to be faster.

    Returns:
        The sum in stream's dtype, and its norm in `dtype`. With the kernels also which tokens are numbers
        (their sum of squares is finite); the norm of the others is then 0. Otherwise None. With `pending`
        None, a `PendingNorm` and None, if the products that read the norm can compute all this.
    """
    is_fused = branch.ndim == 3 and branch.dtype == dtype and products.runs_kernels(branch)
    is_fused = is_fused and (branch.shape[1] != 1 or pallas_kernels.was_faster("rms_norm"))
    is_fused = is_fused and scale.dtype != jnp.float64
    if is_fused and pallas_kernels.supports_rms_norm(stream, branch) is None:
        if pending and products.reads_pending_norms(branch):
            return None, PendingNorm(stream, branch, scale, broken, bias, eps=eps), None
        return pallas_kernels.add_rms_norm(stream, branch, scale, broken, bias, eps=eps)
    if bias is not None:
        branch = products.plus_bias(branch, bias)
    if broken is not None:
        branch = nan_unless(~broken[..., None], branch)
    stream = residual_sum(stream, branch)
    return stream, rms_norm(stream, scale, eps).astype(dtype), None


def residual_sum(
    stream: Float[Array, "B N D"] | None, branch: Float[Array, "B N D"]
) -> Float[Array, "B N D"]:
    """Return stream + branch in stream's dtype, or the branch in its accumulation dtype."""
    if stream is None:
        return keep_tokens(branch.astype(accumulation_dtype(branch)))
    return keep_tokens(stream + branch.astype(stream.dtype))


@op()
def layer_norm(
    x: Float[Array, "... D"],
    scale: Float[Array, "*heads D"],
    bias: Float[Array, "*heads D"] | None = None,
    eps: float = 1e-5,
) -> Float[Array, "... D"]:
    """Return (x - mean) / sqrt(variance + eps) * scale + bias over the last axis, in the dtype of x.

    Scale and bias may have more of x's last axes: with (H, D) it is the group norm of H heads.
    """
    _expect_vectors(x)
    _expect_last_axes("scale", scale, x)
    if bias is not None:
        _expect_last_axes("bias", bias, x)
    dtype = accumulation_dtype(x)
    y = x.astype(dtype)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * lax.rsqrt(_mean_square(y, eps)) * scale.astype(dtype)
    return (y if bias is None else y + bias.astype(dtype)).astype(x.dtype)


@op()
def l2_norm(x: Float[Array, "... D"], eps: float = 1e-6) -> Float[Array, "... D"]:
    """Return x / sqrt(sum(x^2) + eps) over the last axis, in the dtype of x; zeros stay zeros."""
    _expect_vectors(x)
    y = x.astype(accumulation_dtype(x))
    return (y * lax.rsqrt(jnp.sum(y * y, axis=-1, keepdims=True) + eps)).astype(x.dtype)


def _mean_square(y: Float[Array, "... D"], eps: float) -> Float[Array, "... 1"]:
    """Return mean(y^2) + eps over the last axis."""
    if products.is_row_on_gpu(y):
        return jnp.sum(y * y * (1 / y.shape[-1]) + eps / y.shape[-1], axis=-1, keepdims=True)
    return jnp.mean(y * y, axis=-1, keepdims=True) + eps


def _expect_vectors(x: Array) -> None:
    expect_array("x", x, (*[None] * (np.ndim(x) - 1), "D"), "floating")


def _expect_last_axes(argument: str, array: Array, x: Array) -> None:
    expect_array(argument, array, x.shape[-max(np.ndim(array), 1) :], "floating")
