"""What a model has besides its mixers: norms, MLPs, dropout, rows of tables and sinusoids.

gated MLP: y = (value(x) * act(gate(x))) W_out         SwiGLU with act = silu
plain MLP: y = act(x W_in) W_out
"""

from typing import Any, ClassVar, cast

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.mixers.contract import Projection
from based_jax.mixers.initializers import ones, zeros
from based_jax.ops.core.arrays import wide
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.ops.core.products import ACTIVATIONS
from based_jax.ops.norm import add_rms_norm, residual_sum
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect_choice


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * scale, in float32, returned in `dtype`."""

    eps: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Array | None,
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
        scale = self.param("scale", ones("embed"), cast(Array, x if branch is None else branch).shape[-1:])
        if branch is None:
            return ops.rms_norm(cast(Array, x), scale, self.eps).astype(self.dtype)
        options: dict[str, Any] = {"eps": self.eps, "dtype": self.dtype, "pending": pending}
        return add_rms_norm(x, branch, scale, broken, bias, **options)


class LayerNorm(nn.Module):
    """y = (x - mean) / sqrt(variance + eps) * scale + bias, in float32, returned in `dtype`."""

    eps: float = 1e-5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array | None, branch: Array | None = None) -> Any:
        """Normalise the last axis, multiply by the scale and add the bias; the shape stays.

        With a branch return x + branch, its norm, and None; x may be None as in `RMSNorm`.
        """
        x = cast(Array, x) if branch is None else residual_sum(x, branch)
        scale = self.param("scale", ones("embed"), x.shape[-1:])
        bias = self.param("bias", zeros("embed"), x.shape[-1:])
        y = ops.layer_norm(x, scale, bias, self.eps).astype(self.dtype)
        return y if branch is None else (x, y, None)


def make_norm(kind: str, eps: float, dtype: Any) -> RMSNorm | LayerNorm:
    """Return the norm called `kind`: "rms" or "layer"."""
    return {"rms": RMSNorm, "layer": LayerNorm}[kind](eps=eps, dtype=dtype)


class MLP(nn.Module):
    """Plain MLP, as in Zoology's synthetic models (there with exact GELU, as wide as the model).

    Attributes:
        d_model: width of the input, and by default of the output.
        hidden: hidden width.
        activation: one of `ACTIVATIONS`.
        bias: add biases in both maps.
        out_bias: add a bias in the second map; None for the value of `bias`.
        d_out: width of the output; None for d_model.
    """

    d_model: int
    hidden: int
    activation: str = "gelu"
    bias: bool = True
    dtype: Any = jnp.float32
    init_std: float = 0.02
    out_init_std: float | None = None
    out_bias: bool | None = None
    d_out: int | None = None

    gated: ClassVar[bool] = False
    projects_input: ClassVar[bool] = True
    """as `Mixer.projects_input`"""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Apply the MLP to the last axis; the output has `d_out` channels.

        Raises:
            ValueError: another name in `activation`.
        """
        expect_choice("activation", self.activation, tuple(ACTIVATIONS))
        options: dict[str, Any] = {"bias": self.bias, "dtype": self.dtype}
        # Value and gate have a separate axis, so that `mlp` can be sharded.
        features, axes = ((2, self.hidden), (None, "mlp")) if self.gated else ((self.hidden,), ("mlp",))
        into: dict[str, Any] = {"name": "in_proj", "init_std": self.init_std, **options}
        into["gate"] = self.activation if self.gated else None
        inner = Projection(features, ("embed", *axes), **into)(x)
        inner = inner if self.gated else ACTIVATIONS[self.activation](inner)
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        options |= {} if self.out_bias is None else {"bias": self.out_bias}
        width = (self.d_model if self.d_out is None else self.d_out,)
        return Projection(width, ("mlp", "embed"), name="out", init_std=out_std, **options)(inner)


class GatedMLP(MLP):
    """Gated MLP (SwiGLU in Based, Table 7); `activation`, that of the gate, also gives GEGLU and GLU."""

    activation: str = "silu"
    bias: bool = False

    gated: ClassVar[bool] = True


class IdentityMLP(nn.Module):
    """Identity: the block adds its second norm to the stream, as Zoology's synthetic models do."""

    projects_input: ClassVar[bool] = False

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Return x."""
        return x


def make_mlp(kind: str, **options: Any) -> MLP | IdentityMLP | None:
    """Return the MLP called `kind`: "gated", "plain", "identity" or "none"."""
    if kind == "identity":
        return IdentityMLP()
    return None if kind == "none" else {"gated": GatedMLP, "plain": MLP}[kind](**options)


class Drop(nn.Module):
    """Dropout, then stochastic depth; the identity if `apply` is given no "dropout" key.

    Kept numbers are divided by the probability of being kept.

    Attributes:
        rate: probability that a number becomes zero.
        rate_of_rows: probability that all numbers of a row become zero (stochastic depth).
    """

    rate: float = 0.0
    rate_of_rows: float = 0.0

    @nn.compact
    def __call__(self, h: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        is_calm = not self.has_rng("dropout")
        for dropout in (nn.Dropout(self.rate), nn.Dropout(self.rate_of_rows, broadcast_dims=(1, 2))):
            h = cast(Any, dropout)(h, deterministic=is_calm)
        return h


def rows(
    table: Float[Array, "rows D"], index: Int[Array, "..."], count: int | None = None
) -> Float[Array, "... D"]:
    """Return the rows with these indices, NaN outside [0, count).

    `jnp.take` alone would wrap negative indices.
    """
    index, count = wide(index), len(table) if count is None else count
    exists = (index >= 0) & (index < count)
    return nan_unless(exists[..., None], jnp.take(table, jnp.where(exists, index, 0), axis=0, mode="clip"))


def sinusoids(count: int, width: int, dtype: Any) -> Float[Array, "positions D"]:
    """Return sin(p w_i) and cos(p w_i) in turn, w_i = 10000^(-2 i / D) (Vaswani et al. 2017, section 3.5)."""
    angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(count, -1)
    return jnp.asarray(table[:, :width], dtype)
