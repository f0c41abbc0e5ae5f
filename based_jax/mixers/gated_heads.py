"""Base class of GLA and RetNet: heads of a linear recurrence, each normed, with an output gate.

q, k, v = x W_q, x W_k, x W_v;   y = (norm(recurrence(q, k, v)) * f(x W_g)) W_o,   f = silu
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Factor, Size
from based_jax.mixers.contract import Context, Mixer
from based_jax.mixers.initializers import ones
from based_jax.typing import Array, Float, State
from based_jax.validate import expect_choice, expect_divisible

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": jax.nn.gelu,  # the tanh approximation, as fla's
    "identity": lambda x: x,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "square_relu": lambda x: jnp.square(jax.nn.relu(x)),
}


def activation(option: str, name: str) -> Callable[[Array], Array]:
    """Return the activation called `name`, the value of an option."""
    expect_choice(option, name, tuple(ACTIVATIONS))
    return ACTIVATIONS[name]


class GatedHeads(Mixer):
    """Heads with a decaying matrix state; subclasses define the decay and the norm of the outputs.

    Attributes:
        num_heads: heads H; default 4 (fewer if 4 does not divide the channels).
        num_kv_heads: heads of the keys and values, a divisor of num_heads; default num_heads.
        expand_k, expand_v: total key and value channels of num_heads heads over d_model, rounded.
        qk_activation: activation of q and k, a name of `ACTIVATIONS`.
        norm_eps: epsilon of the norm per head.
        norm_affine: scale the normed outputs.
        gate_activation: f of the output gate, a name of `ACTIVATIONS`; None for no gate.
        chunk_size: tokens per chunk; the result does not depend on it.
        implementation: passed to `ops.linear_recurrence`.
    """

    num_heads: Size | None = None
    num_kv_heads: Size | None = None
    expand_k: Factor = 1.0
    expand_v: Factor = 1.0
    qk_activation: str = "identity"
    norm_eps: Epsilon = 1e-5
    norm_affine: bool = True
    gate_activation: str | None = "silu"
    chunk_size: Size | None = None
    implementation: str | None = None

    @property
    def most_heads(self) -> int:
        """The default number of heads; lowered if it does not divide the channels."""
        return 4

    @nn.nowrap
    def layout(self) -> tuple[int, int, int]:
        """Return the heads, key and value channels per head."""
        key_size, value_size = (max(round(x * self.d_model), 1) for x in (self.expand_k, self.expand_v))
        heads = self.num_heads
        if heads is None:
            common = math.gcd(key_size, value_size)
            heads = next(count for count in range(self.most_heads, 0, -1) if common % count == 0)
        expect_divisible("expand_k * d_model", key_size, "num_heads", heads)
        expect_divisible("expand_v * d_model", value_size, "num_heads", heads)
        return heads, key_size // heads, value_size // heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        heads, _, _ = self.layout()
        if self.num_kv_heads is None:
            return heads
        expect_divisible("num_heads", heads, "num_kv_heads", self.num_kv_heads)
        return self.num_kv_heads

    @nn.nowrap
    def projected(self, x: Float[Array, "B N D"]) -> list[Array]:
        """Return queries (B, N, H, K), and keys and values of the `kv_heads`."""
        heads, key_size, value_size = self.layout()
        shapes = {"q": (heads, key_size), "k": (self.kv_heads, key_size), "v": (self.kv_heads, value_size)}
        outputs: list[Array] = []
        for name, shape in shapes.items():
            axes = ("embed", "heads" if name == "q" else "kv_heads", "head_dim")
            outputs.append(self.linear(shape, *axes, name=name)(x))
        return outputs

    @nn.nowrap
    def for_all_heads(self, *groups: Float[Array, "B N G C"]) -> list[Float[Array, "B N H C"]]:
        """Repeat each of the `kv_heads` for the neighbouring query heads that share it."""
        heads, _, _ = self.layout()
        return [x if x.shape[2] == heads else jnp.repeat(x, heads // x.shape[2], axis=2) for x in groups]

    @nn.nowrap
    def rms_normed(self, y: Float[Array, "B N H V"]) -> Float[Array, "B N H V"]:
        """Divide each head by its root mean square; all heads share a scale per channel."""
        width = y.shape[-1:]
        scale = self.param("norm_scale", ones("head_dim"), width) if self.norm_affine else jnp.ones(width)
        return ops.rms_norm(y, scale, self.norm_eps)

    @nn.nowrap
    def recur(
        self, q: Array, k: Array, v: Array, log_decay: Array, state: State, context: Context
    ) -> tuple[Array, State]:
        """Run the recurrence; return its outputs and its state."""
        options = {"chunk_size": self.chunk_size, "implementation": self.implementation}
        return context.run(ops.linear_recurrence, q, k, v, log_decay, initial_state=state, **options)

    @nn.nowrap
    def read_out(self, y: Float[Array, "B N H V"], x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Gate the normed heads and project them to d_model."""
        if self.gate_activation is not None:
            gate = self.to_heads(*y.shape[-2:], name="gate")(x)
            y = y * activation("gate_activation", self.gate_activation)(gate)
        return self.to_output("heads", "head_dim", name="out")(y)

    def state_size(self, length: int) -> int:
        """Return d_k d_v per head (`state_size` of GLA and RetNet in Zoology's code)."""
        heads, key_size, value_size = self.layout()
        return heads * key_size * value_size
