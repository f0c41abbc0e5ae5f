"""Gated short convolution, the BaseConv of Based's language models (Based, section 4.2; its code).

    u1, u2 = split(x W_in + b_in);   y = (silu(conv(u1)) * u2) W_out + b_out

conv is depthwise, causal and `kernel_size` tokens long. As in the code, not the paper: each branch is
expand * d_model / 2 wide, the bias comes before the convolution, and the gate u2 stays linear.
"""

from typing import Any, ClassVar

import jax
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Repeats
from based_jax.mixers.contract import Card, Mixer, Projection, named, uniform
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect, expect_divisible


class GatedConv(Mixer):
    """Gated short convolution.

    Attributes:
        expand: width of the input projection over d_model (both branches together).
        kernel_size: taps of the convolution.
        bias: biases of both projections.
        conv_bias: bias of the convolution (none in the released models).
    """

    card: ClassVar[Card] = Card(
        equation="(silu(conv(x W_1)) * x W_2) W_o",
        training="N k E + N D E",
        state="k E",
        decoding="k E",
        source="Based, section 4.2",
        parity=("based/base_conv",),
    )

    expand: Repeats = 4
    kernel_size: Repeats = 3
    bias: bool = True
    conv_bias: bool = False

    @property
    def channels(self) -> int:
        """Width of each branch."""
        expect(self.kernel_size >= 1, "kernel_size", self.kernel_size, "at least 1")
        expect_divisible("expand * d_model", self.expand * self.d_model, "branches", 2)
        return self.expand * self.d_model // 2

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
        options: dict[str, Any] = {"bias": self.bias, "dtype": self.dtype}
        inner = Projection(
            (2, self.channels), ("embed", None, "mlp"), name="in_proj", init_std=self.init_std, **options
        )(x)
        kernel = self.param(
            "conv_kernel",
            named(uniform(self.kernel_size**-0.5), None, "mlp"),
            (self.kernel_size, self.channels),
        )
        bias = None
        if self.conv_bias:
            bias = self.param("conv_bias", named(uniform(self.kernel_size**-0.5), "mlp"), (self.channels,))
        conv, new_state = ops.short_conv(
            inner[..., 0, :], kernel, bias,
            initial_state=state, return_state=True, segment_ids=segment_ids, mask=mask,
        )  # fmt: skip
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        y = Projection((self.d_model,), ("mlp", "embed"), name="out", init_std=out_std, **options)(
            jax.nn.silu(conv) * inner[..., 1, :]
        )
        return y, None if state is None else new_state

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        return ops.init_short_conv_state(
            batch_size, self.channels, self.kernel_size, self.dtype if dtype is None else dtype
        )

    def state_size(self, length: int) -> int:
        """Channels times taps, as the papers count it; one tap less is stored."""
        return self.channels * self.kernel_size
