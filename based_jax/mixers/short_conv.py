"""A bare depthwise causal convolution as a mixer: y[t] = sum_j kernel[T-1-j] * x[t-j] + bias."""

from typing import Any, ClassVar

from flax import linen as nn

from based_jax import ops
from based_jax.fields import Repeats
from based_jax.mixers.contract import Card, Mixer, named, uniform
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


class ShortConv(Mixer):
    """Depthwise causal convolution over `kernel_size` tokens.

    Attributes:
        kernel_size: taps.
        bias: add a bias per channel.
    """

    card: ClassVar[Card] = Card(
        equation="conv_k(x), depthwise",
        training="N k D",
        state="k D",
        decoding="k D",
        source="Zoology's code",
        parity=("based/short_convolution",),
    )

    kernel_size: Repeats = 3
    bias: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        x = self.check_input(x)
        expect(self.kernel_size >= 1, "kernel_size", self.kernel_size, "at least 1")
        init = uniform(self.kernel_size**-0.5)
        kernel = self.param("kernel", named(init, None, "embed"), (self.kernel_size, self.d_model))
        bias = self.param("bias", named(init, "embed"), (self.d_model,)) if self.bias else None
        y, new_state = ops.short_conv(
            x, kernel, bias, initial_state=state, return_state=True, segment_ids=segment_ids, mask=mask
        )
        return y, None if state is None else new_state

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        return ops.init_short_conv_state(
            batch_size, self.d_model, self.kernel_size, self.dtype if dtype is None else dtype
        )

    def state_size(self, length: int) -> int:
        """Channels times taps, as the papers count it; one tap less is stored."""
        return self.d_model * self.kernel_size
