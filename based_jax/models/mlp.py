"""The MLP between mixers, gated or plain.

    gated: y = (value(x) * act(gate(x))) W_out
    plain: y = act(x W_in) W_out

With act = silu the gated one is SwiGLU.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn

from based_jax.mixers.contract import Projection
from based_jax.ops.core.products import ACTIVATIONS
from based_jax.typing import Array, Float
from based_jax.validate import expect_choice


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

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Return x."""
        return x


def make_mlp(kind: str, **options: Any) -> MLP | IdentityMLP | None:
    """Return the MLP called `kind`: "gated", "plain", "identity" or "none"."""
    if kind == "identity":
        return IdentityMLP()
    return None if kind == "none" else {"gated": GatedMLP, "plain": MLP}[kind](**options)
