"""SMA: attention for the tokens that a two-way softmax selects (Zoology's code).

    y = x + s * attention(x),   s = softmax((x W + b) / T)_2

The temperature T is learned, from alpha sqrt(d_model). Close to SeqBoat's sparse modular activation (Ren et
al. 2023). With `hard`, Zoology's evaluation, only the ceil(sqrt(N)) tokens with the highest s get the update.
"""

import jax
from flax import linen as nn

from based_jax.fields import Positive
from based_jax.mixers.contract import register
from based_jax.mixers.initializers import named
from based_jax.mixers.selection_heads import Lookups
from based_jax.typing import Array, Float


@register("sma")
class SMA(Lookups):
    """Attention weighted by a two-way softmax; `hard` is not causal.

    Attributes:
        alpha: the temperature's initial value over sqrt(d_model).
    """

    alpha: Positive = 0.3

    def setup(self) -> None:
        super().setup()
        self.selecting = self.scores(2, bias=True)
        start = nn.initializers.constant(self.alpha * self.d_model**0.5)
        self.temperature = self.param("temperature", named(start, None), (1,))

    def weigh(self, x: Float[Array, "B N D"]) -> Float[Array, "B N"]:
        """Return each token's weight s, the second entry of softmax((x W + b) / T)."""
        return jax.nn.softmax(self.selecting(x) / self.temperature, axis=-1)[..., 1]
