"""BaseConv: a convolution, short or long, gated by a projection (Zoology, section 4).

    y = conv(x) * (x W + b) + x

As in Zoology's code, the input is added here, in addition to the block's residual; a short convolution has a
bias, a long one adds its input: conv(x) = h * x + x. The papers' models alternate short and long layers.
"""

from typing import Annotated, Any

import jax
from flax import linen as nn

from based_jax import ops
from based_jax.fields import MAX_REPEATS, Between
from based_jax.mixers.contract import Context, register
from based_jax.mixers.long_filters import LongFilters
from based_jax.typing import Array, Float, State
from based_jax.validate import expect

LONG = -1


@register("base_conv")
class BaseConv(LongFilters):
    """Gated convolution without an output projection.

    Attributes:
        kernel_size: taps of a short convolution; -1 for a long convolution.
        use_act: apply SiLU to both factors.
    """

    kernel_size: Annotated[int, Between(LONG, MAX_REPEATS)] = 3
    use_act: bool = False

    @property
    def is_long(self) -> bool:
        """Whether the convolution is a long one."""
        size = self.kernel_size
        expect(size >= 1 or size == LONG, "kernel_size", size, "at least 1, or -1 for a long convolution")
        return size == LONG

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        gate = self.linear(self.d_model, "embed", "mlp", bias=True, name="projection")(x)
        if self.is_long:
            conv, state = self.convolve(x, state, context)
        else:
            taps, bias = self.conv_params(self.kernel_size, self.d_model, "embed")
            conv, state = context.run(ops.short_conv, x, taps, bias, initial_state=state)
        if self.use_act:
            conv, gate = jax.nn.silu(conv), jax.nn.silu(gate)
        return conv * gate + x, state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        if self.is_long:
            return super().empty_state(batch_size, max_length, dtype)
        return ops.init_short_conv_state(batch_size, self.d_model, self.kernel_size, dtype)

    def state_size(self, length: int) -> int:
        """Return the size of the convolution's inputs: d times its taps, or d N (Zoology's code)."""
        return super().state_size(length) if self.is_long else self.d_model * self.kernel_size
