"""Dropout and stochastic depth: drop single numbers of a residual branch, or a row's whole branch."""

from typing import Any, cast

from flax import linen as nn

from based_jax.typing import Array, Float


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
