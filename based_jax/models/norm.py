"""Norm layers: `ops.norm` with a learned scale."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.mixers.initializers import ones, zeros
from based_jax.ops.core.sharding import keep_tokens
from based_jax.ops.norm import add_rms_norm
from based_jax.typing import Array


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * scale, in float32, returned in `dtype`."""

    eps: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Array,
        branch: Array | None = None,
        broken: Array | None = None,
        bias: Array | None = None,
        *,
        pending: bool = False,
    ) -> Any:
        """Normalise the last axis and multiply by the scale; the shape stays.

        With a branch, and maybe its bias and broken tokens, return the results of `ops.norm.add_rms_norm`:
        their sum with x, its norm, and which tokens are numbers or None; `pending`: see there.
        """
        scale = self.param("scale", ones("embed"), x.shape[-1:])
        if branch is None:
            return ops.rms_norm(x, scale, self.eps).astype(self.dtype)
        options: dict[str, Any] = {"eps": self.eps, "dtype": self.dtype, "pending": pending}
        return add_rms_norm(x, branch, scale, broken, bias, **options)


class LayerNorm(nn.Module):
    """y = (x - mean) / sqrt(variance + eps) * scale + bias, in float32, returned in `dtype`."""

    eps: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array, branch: Array | None = None) -> Any:
        """Normalise the last axis, multiply by the scale and add the bias; the shape stays.

        With a branch return x + branch, its norm, and None.
        """
        scale = self.param("scale", ones("embed"), x.shape[-1:])
        bias = self.param("bias", zeros("embed"), x.shape[-1:])
        x = x if branch is None else keep_tokens(x + branch.astype(x.dtype))
        y = ops.layer_norm(x, scale, bias, self.eps).astype(self.dtype)
        return y if branch is None else (x, y, None)


def make_norm(kind: str, eps: float, dtype: Any) -> RMSNorm | LayerNorm:
    """Return the norm called `kind`: "rms" or "layer"."""
    return {"rms": RMSNorm, "layer": LayerNorm}[kind](eps=eps, dtype=dtype)
