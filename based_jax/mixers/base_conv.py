"""BaseConv: a convolution, short or long, gated by a projection (Zoology, section 4).

    y = conv(x) * (x W + b) + x

As in the code, the input is added here, beside the block's residual; a short convolution has a bias, a long
one adds its own input: conv(x) = h * x + x. The papers' models alternate short and long layers.
"""

from typing import Annotated, Any, ClassVar

import jax
from flax import linen as nn

from based_jax import ops
from based_jax.fields import MAX_REPEATS, Between, Length
from based_jax.mixers.contract import Card, Mixer, Projection, named, uniform
from based_jax.mixers.long_filters import ExplicitFilter, MLPFilter, taps_needed
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect

LONG = -1


class BaseConv(Mixer):
    """Gated convolution without an output projection.

    Attributes:
        kernel_size: taps of a short convolution; -1 is a long one.
        l_max: taps of a long convolution; inputs that are longer ago are not seen.
        implicit: make the long filter by an MLP over the position instead of learning each tap.
        use_act: SiLU on both factors.
        implementation: of `ops.long_conv`.
    """

    card: ClassVar[Card] = Card(
        equation="conv(x) * (x W + b) + x, conv short or long",
        training="N D^2 + N k D, or N log N D",
        state="k D, or D N",
        decoding="k D, or D N",
        source="Zoology, section 4",
        parity=(
            "zoology/base_conv_short",
            "zoology/base_conv_implicit_long",
            "zoology/base_conv_explicit_long",
        ),
    )

    kernel_size: Annotated[int, Between(LONG, MAX_REPEATS)] = 3
    l_max: Length = 1024
    implicit: bool = True
    use_act: bool = False
    implementation: str | None = None

    @property
    def is_long(self) -> bool:
        """Whether the convolution is a long one."""
        size = self.kernel_size
        expect(size >= 1 or size == LONG, "kernel_size", size, "at least 1, or -1 for a long convolution")
        expect(self.l_max >= 1, "l_max", self.l_max, "at least 1")
        return size == LONG

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
        gate = Projection(
            (self.d_model,), ("embed", "mlp"), bias=True, dtype=self.dtype, init_std=self.init_std,
            name="projection",
        )(x)  # fmt: skip
        context: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask}
        context |= {"initial_state": state, "return_state": state is not None}
        conv = self._long(x, context) if self.is_long else self._short(x, context)
        conv, state = (conv, None) if state is None else conv
        if self.use_act:
            conv, gate = jax.nn.silu(conv), jax.nn.silu(gate)
        return conv * gate + x, state

    def _short(self, x: Array, context: dict[str, Any]) -> Any:
        init = uniform(self.kernel_size**-0.5)
        kernel = self.param("conv_kernel", named(init, None, "embed"), (self.kernel_size, self.d_model))
        bias = self.param("conv_bias", named(init, "embed"), (self.d_model,))
        return ops.short_conv(x, kernel, bias, **context)

    def _long(self, x: Array, context: dict[str, Any]) -> Any:
        dtype, state = accumulation_dtype(x), context["initial_state"]
        if self.implicit:
            make = MLPFilter(self.d_model, self.l_max, dtype=dtype, init_std=self.init_std, name="filter")
        else:
            make = ExplicitFilter(self.d_model, self.l_max, dtype=dtype, name="filter")
        kernel = make(taps_needed(self.l_max, x.shape[1], state))
        y = ops.long_conv(x, kernel, implementation=self.implementation, **context)
        return y + x if state is None else (y[0] + x, y[1])

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        dtype = self.dtype if dtype is None else dtype
        if not self.is_long:
            return ops.init_short_conv_state(batch_size, self.d_model, self.kernel_size, dtype)
        slots = self.l_max if max_length is None else min(max_length, self.l_max)
        return ops.init_long_conv_state(batch_size, slots, self.d_model, dtype)

    def state_size(self, length: int) -> int:
        """The convolution's inputs: d times its taps, or d N (spec of Zoology, 3.4 to 3.6)."""
        return self.d_model * (min(length, self.l_max) if self.is_long else self.kernel_size)
