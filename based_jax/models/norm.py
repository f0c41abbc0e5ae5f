"""Norm layers: `ops.norm` with a learned scale."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.mixers.contract import ones, zeros
from based_jax.typing import Array, Float


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * scale, in float32, returned in `dtype`."""

    eps: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Normalise the last axis and multiply by the scale; the shape stays."""
        scale = self.param("scale", ones("embed"), x.shape[-1:])
        return ops.rms_norm(x, scale, self.eps).astype(self.dtype)


class LayerNorm(nn.Module):
    """y = (x - mean) / sqrt(variance + eps) * scale + bias, in float32, returned in `dtype`."""

    eps: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Normalise the last axis, multiply by the scale and add the bias; the shape stays."""
        scale = self.param("scale", ones("embed"), x.shape[-1:])
        bias = self.param("bias", zeros("embed"), x.shape[-1:])
        return ops.layer_norm(x, scale, bias, self.eps).astype(self.dtype)


def make_norm(kind: str, eps: float, dtype: Any) -> RMSNorm | LayerNorm:
    """Return the norm called `kind`: "rms" or "layer"."""
    return {"rms": RMSNorm, "layer": LayerNorm}[kind](eps=eps, dtype=dtype)
