"""Root-mean-square and layer normalisation, computed in float32 whatever the input dtype."""

import jax.numpy as jnp
from jax import lax

from based_jax.ops.dtypes import accumulation_dtype
from based_jax.typing import Array, Float
from based_jax.validate import expect_array


def rms_norm(x: Float[Array, "... D"], scale: Float[Array, " D"], eps: float = 1e-5) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, in the dtype of x."""
    expect_array("scale", scale, (x.shape[-1],), "floating")
    dtype = accumulation_dtype(x)
    y = x.astype(dtype)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * scale.astype(dtype)).astype(x.dtype)


def layer_norm(
    x: Float[Array, "... D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None,
    eps: float = 1e-5,
) -> Float[Array, "... D"]:
    """(x - mean) / sqrt(variance + eps) * scale + bias over the last axis, in the dtype of x."""
    expect_array("scale", scale, (x.shape[-1],), "floating")
    if bias is not None:
        expect_array("bias", bias, (x.shape[-1],), "floating")
    dtype = accumulation_dtype(x)
    y = x.astype(dtype)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps) * scale.astype(dtype)
    return (y if bias is None else y + bias.astype(dtype)).astype(x.dtype)
