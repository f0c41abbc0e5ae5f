"""A long convolution with the identity beside it, Zoology's LongConv (Zoology, section 4).

    y = h * x + x,   h: one filter of l_max taps per channel, learned as it is or by an MLP over the position

In the papers' language models (Fu et al. 2023) gelu and a linear map follow: y <- gelu(y) W_o + b_o.
"""

from typing import Any, ClassVar

import jax
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Length
from based_jax.mixers.contract import Card, Mixer, Projection
from based_jax.mixers.long_filters import ExplicitFilter, MLPFilter, taps_needed
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


class LongConv(Mixer):
    """Long convolution. Its state is the last inputs: `max_length` of them, or `l_max` if that is less.

    Attributes:
        l_max: taps; inputs that are longer ago are not seen.
        implicit: make the filter by an MLP over the position.
        project: gelu and an output projection behind it, as in the papers' language models.
        implementation: of `ops.long_conv`.
    """

    card: ClassVar[Card] = Card(
        equation="h * x + x, one filter per channel",
        training="N log N D",
        state="D N",
        decoding="D N",
        source="Fu et al. 2023; Zoology's code",
        parity=("zoology/long_conv",),
    )

    l_max: Length = 1024
    implicit: bool = False
    project: bool = False
    implementation: str | None = None

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
        expect(self.l_max >= 1, "l_max", self.l_max, "at least 1")
        dtype = accumulation_dtype(x)
        if self.implicit:
            make = MLPFilter(self.d_model, self.l_max, dtype=dtype, init_std=self.init_std, name="filter")
        else:
            make = ExplicitFilter(self.d_model, self.l_max, dtype=dtype, name="filter")
        y = ops.long_conv(
            x, make(taps_needed(self.l_max, x.shape[1], state)),
            initial_state=state, return_state=state is not None, segment_ids=segment_ids, mask=mask,
            implementation=self.implementation,
        )  # fmt: skip
        y, state = (y, None) if state is None else y
        y = y + x
        if self.project:
            out_std = self.init_std if self.out_init_std is None else self.out_init_std
            out = Projection(
                (self.d_model,), ("mlp", "embed"), bias=True, dtype=self.dtype, init_std=out_std, name="out"
            )
            y = out(jax.nn.gelu(y, approximate=False))
        return y, state

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        slots = self.l_max if max_length is None else min(max_length, self.l_max)
        return ops.init_long_conv_state(
            batch_size, slots, self.d_model, self.dtype if dtype is None else dtype
        )

    def state_size(self, length: int) -> int:
        """d N (spec of Zoology, 3.6), of at most l_max inputs."""
        return self.d_model * min(length, self.l_max)
