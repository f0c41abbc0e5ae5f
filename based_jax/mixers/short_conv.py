"""A depthwise causal convolution as a mixer: y[t] = sum_j kernel[T-1-j] * x[t-j] + bias."""

from typing import Any

from flax import linen as nn

from based_jax import ops
from based_jax.fields import Repeats
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.typing import Array, Float, State


@register("short_conv")
class ShortConv(Mixer):
    """Depthwise causal convolution over `kernel_size` tokens.

    Attributes:
        kernel_size: taps.
        bias: add a bias per channel.
    """

    kernel_size: Repeats = 3
    bias: bool = False

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        taps, bias = self.conv_params(self.kernel_size, self.d_model, "embed", self.bias, prefix="")
        return context.run(ops.short_conv, x, taps, bias, initial_state=state)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        return ops.init_short_conv_state(batch_size, self.d_model, self.kernel_size, dtype)

    def state_size(self, length: int) -> int:
        """Return channels times taps, as the papers count it; one tap less is stored."""
        return self.d_model * self.kernel_size
