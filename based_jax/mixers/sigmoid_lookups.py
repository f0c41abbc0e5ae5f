"""SigmoidLookups: attention for the tokens that a sigmoid selects (Zoology's code).

    y = x + s * attention(x),   s = sigmoid(x w),   loss = penalty relu(mean(s) - n / N)

n is `lookups`, by default sqrt(N). With `hard`, Zoology's evaluation, only the n tokens with the highest s
get the update.
"""

import jax
import jax.numpy as jnp

from based_jax.fields import AtLeastZero, Size
from based_jax.mixers.contract import register
from based_jax.mixers.selection_heads import Lookups
from based_jax.typing import Array, Float, Int, Mask


@register("sigmoid_lookups")
class SigmoidLookups(Lookups):
    """Attention weighted by a sigmoid, with a loss on the mean weight; `hard` is not causal.

    Attributes:
        lookups: n, tokens to select per row; None for sqrt(N), rounded up with `hard`.
        penalty: factor of the auxiliary loss (see `auxiliary_loss`).
    """

    lookups: Size | None = None
    penalty: AtLeastZero = 0.001

    def setup(self) -> None:
        super().setup()
        self.selecting = self.scores()

    def weigh(self, x: Float[Array, "B N D"]) -> Float[Array, "B N"]:
        """Return each token's weight s = sigmoid(x w), between 0 and 1."""
        return jax.nn.sigmoid(self.selecting(x)[..., 0])

    def count(self, lengths: Int[Array, "B N"]) -> Int[Array, "B N"]:
        """Return how many tokens `hard` selects: `lookups`, or ceil(sqrt(N)) in segments of N tokens."""
        return super().count(lengths) if self.lookups is None else jnp.full_like(lengths, self.lookups)

    def loss(
        self, weights: Float[Array, "B N"], lengths: Int[Array, "B N"], mask: Mask | None
    ) -> Float[Array, ""]:
        """Return the excess of the real tokens' mean weight over the share of tokens to select."""
        size = jnp.maximum(lengths, 1).astype(weights.dtype)
        excess = weights - (jnp.sqrt(size) if self.lookups is None else self.lookups) / size
        real = jnp.ones_like(weights) if mask is None else mask.astype(weights.dtype)
        mean = jnp.sum(excess * real) / jnp.maximum(jnp.sum(real), 1)
        return self.penalty * jax.nn.relu(mean)
