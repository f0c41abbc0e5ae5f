"""A long convolution plus its input, Zoology's LongConv (Zoology, section 4).

    y = h * x + x,   h: one filter of l_max taps per channel, learned directly or by an MLP over the position

The papers' language models (Fu et al. 2023) add gelu and a linear map: y <- gelu(y) W_o + b_o.
"""

import jax
from flax import linen as nn

from based_jax.mixers.contract import Context, register
from based_jax.mixers.long_filters import LongFilters
from based_jax.typing import Array, Float, State


@register("long_conv")
class LongConv(LongFilters):
    """Long convolution. Its state is the last min(`max_length`, `l_max`) inputs.

    Attributes:
        project: add gelu and an output projection, as in the papers' language models.
    """

    implicit: bool = False
    project: bool = False

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        y, state = self.convolve(x, state, context)
        if self.project:
            y = self.to_output("mlp", bias=True, name="out")(jax.nn.gelu(y, approximate=False))
        return y, state
