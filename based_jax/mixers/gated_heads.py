"""What GLA and RetNet share: heads of a linear recurrence, normed one by one and gated on the way out.

q, k, v = x W_q, x W_k, x W_v;   y = (norm(recurrence(q, k, v)) * silu(x W_g)) W_o
"""

import math
from typing import Any

import jax
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Factor, Size
from based_jax.mixers.contract import Mixer, Projection
from based_jax.typing import Array, Float
from based_jax.validate import expect, expect_divisible


class GatedHeads(Mixer):
    """Heads with a decaying matrix state; subclasses say how it decays and how the outputs are normed.

    Attributes:
        num_heads: heads H; the default always divides.
        expand_k, expand_v: key and value channels of all heads together over d_model, rounded.
        norm_eps: of the norm per head.
        chunk_size: tokens per chunk; the result does not depend on it.
        implementation: of `ops.linear_recurrence`.
    """

    num_heads: Size | None = None
    expand_k: Factor = 1.0
    expand_v: Factor = 1.0
    norm_eps: Epsilon = 1e-5
    chunk_size: Size | None = None
    implementation: str | None = None

    @nn.nowrap
    def most_heads(self) -> int:
        """The default number of heads, before it is lowered to divide."""
        raise NotImplementedError(f"{type(self).__name__} does not define most_heads")

    @nn.nowrap
    def layout(self) -> tuple[int, int, int]:
        """Heads, key and value channels per head."""
        for name in ("expand_k", "expand_v"):
            expect(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        key_size, value_size = (max(round(x * self.d_model), 1) for x in (self.expand_k, self.expand_v))
        heads = self.num_heads
        if heads is None:
            common = math.gcd(key_size, value_size)
            heads = next(count for count in range(self.most_heads(), 0, -1) if common % count == 0)
        expect_divisible("expand_k * d_model", key_size, "num_heads", heads)
        expect_divisible("expand_v * d_model", value_size, "num_heads", heads)
        return heads, key_size // heads, value_size // heads

    def project(self, x: Float[Array, "B N D"], name: str, channels: int) -> Float[Array, "B N H K"]:
        """One of the maps into heads."""
        heads, _, _ = self.layout()
        axes = ("embed", "heads", "head_dim")
        return Projection((heads, channels), axes, dtype=self.dtype, init_std=self.init_std, name=name)(x)

    def recur(self, q: Array, k: Array, v: Array, log_decay: Array, **context: Any) -> tuple[Array, Any]:
        """The recurrence: its outputs and its state."""
        return ops.linear_recurrence(
            q, k, v, log_decay,
            return_state=True, chunk_size=self.chunk_size, implementation=self.implementation, **context,
        )  # fmt: skip

    def read_out(self, y: Float[Array, "B N H V"], x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Gate the normed heads and map them back."""
        y = y * jax.nn.silu(self.project(x, "gate", y.shape[-1]))
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        axes = ("heads", "head_dim", "embed")
        return Projection((self.d_model,), axes, inputs=2, dtype=self.dtype, init_std=out_std, name="out")(y)

    def state_size(self, length: int) -> int:
        """d_k d_v per head (specs of Zoology 3.14 and 3.15)."""
        heads, key_size, value_size = self.layout()
        return heads * key_size * value_size
