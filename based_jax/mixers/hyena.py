"""Hyena: gates around long implicit convolutions (Hyena, section 3; spec of Zoology, 3.7).

    x_1, ..., x_n, v = split(conv_3(x W_in + b_in));   v <- h_i * (v x_i) + D_i (v x_i)   for i < n
    y = (v x_n) W_out + b_out

n is the order, h_i the filters of `long_filters.SineFilter`. With several heads (the multi-head Hyena of
Zoology's appendix) the products are outer ones: a head of width p convolves the p^2 entries of x_1 v^T with
its one filter, and x_2 contracts them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Length, Positive, Repeats, Size
from based_jax.mixers.contract import Card, Mixer, Projection, named, uniform
from based_jax.mixers.long_filters import SineFilter, taps_needed
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.ring import expect_room
from based_jax.ops.stream import Stream
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect, expect_divisible


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HyenaState:
    """What the convolutions keep."""

    short: ops.ShortConvState
    long: tuple[ops.LongConvState, ...]
    """one per filter"""

    @property
    def stream(self) -> Stream:
        """How far each row has come."""
        return self.short.stream


class Hyena(Mixer):
    """Hyena operator, for at most `l_max` tokens. Its state grows with the text, up to l_max.

    Attributes:
        order: gates; order - 1 long convolutions.
        num_heads: 1 convolves channel by channel; more are outer products within heads (order 2 only).
        l_max: tokens that a text may have, the length of the filters.
        kernel_size: taps of the short convolution.
        emb_dim, filter_order, num_inner_mlps: features of a position, hidden units and inner layers of the
            filters' MLP.
        sine_frequency: its initial frequency; the papers' language models have 14.
        fast_decay, slow_decay: shares of l_max after which the fixed decay is 0.01, for the last and the
            first channel; the papers' language models have slow 1.2.
        implementation: of `ops.long_conv`.
    """

    card: ClassVar[Card] = Card(
        equation="x_2 (h * (x_1 v) + D x_1 v), h from an MLP with sines",
        training="N log N D",
        state="D N",
        decoding="D N",
        source="Poli et al. 2023; Zoology's code",
        parity=("zoology/hyena",),
    )

    order: Repeats = 2
    num_heads: Size = 1
    l_max: Length = 1024
    kernel_size: Repeats = 3
    emb_dim: Repeats = 3
    filter_order: Size = 64
    num_inner_mlps: Repeats = 2
    sine_frequency: Positive = 1.0
    fast_decay: Positive = 0.3
    slow_decay: Positive = 1.5
    implementation: str | None = None

    @property
    def head_dim(self) -> int:
        """Width p of a head; 1 for channel by channel."""
        expect(self.order >= 2, "order", self.order, "at least 2")
        expect(self.l_max >= 1, "l_max", self.l_max, "at least 1")
        expect_divisible("d_model", self.d_model, "num_heads", self.num_heads)
        expect(self.num_heads == 1 or self.order == 2, "order", self.order, "2 with several heads")
        return 1 if self.num_heads == 1 else self.d_model // self.num_heads

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
        batch, length, width = x.shape
        head_dim, parts = self.head_dim, self.order + 1
        before = None if state is None else state.short.stream
        limit = f"l_max = {self.l_max} tokens, the length of the filters"
        expect_room(before, length, mask, self.l_max, limit)

        options: dict[str, Any] = {"bias": True, "dtype": self.dtype}
        inner = Projection(
            (parts, width), ("embed", None, "mlp"), name="in_proj", init_std=self.init_std, **options
        )(x)
        init = uniform(self.kernel_size**-0.5)
        inner, short = ops.short_conv(
            inner.reshape(batch, length, parts * width),
            self.param("conv_kernel", named(init, None, "mlp"), (self.kernel_size, parts * width)),
            self.param("conv_bias", named(init, "mlp"), (parts * width,)),
            initial_state=None if state is None else state.short, return_state=True,
            segment_ids=segment_ids, mask=mask,
        )  # fmt: skip
        # Heads of p channels; the factors of an outer product are (B, N, H, p, 1) and (B, N, H, 1, p).
        *gates, v = jnp.split(inner.reshape(batch, length, parts, -1, head_dim, 1), parts, axis=2)
        gates, v = [gate[:, :, 0] for gate in gates], v[:, :, 0].swapaxes(-1, -2)
        filters, skips = self._filters(taps_needed(self.l_max, length, state and state.long[0]), x)
        long = []
        for index, (gate, kernel, skip) in enumerate(zip(gates[:-1], filters, skips, strict=True)):
            product = gate * v
            y = ops.long_conv(
                product.reshape(batch, length, -1), jnp.repeat(kernel, head_dim**2, axis=1),
                skip=jnp.repeat(skip, head_dim**2),
                initial_state=None if state is None else state.long[index],
                return_state=state is not None, segment_ids=segment_ids, mask=mask,
                implementation=self.implementation,
            )  # fmt: skip
            if state is not None:
                y, kept = y
                long.append(kept)
            v = y.reshape(product.shape)
        y = jnp.sum(v * gates[-1], axis=-2).reshape(batch, length, width)
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        y = Projection((width,), ("mlp", "embed"), name="out", init_std=out_std, **options)(y)
        if state is None:
            return y, None
        # A longer row would go on with filters that end; under `jit` that is no error.
        y = jnp.where((short.stream.length <= self.l_max)[:, None, None], y, jnp.nan)
        return y, HyenaState(short, tuple(long))

    def _filters(self, taps: int, x: Array) -> tuple[list[Array], list[Array]]:
        """Kernels (taps, H) and skips (H,) of each long convolution."""
        heads, count = self.d_model // self.head_dim, self.order - 1
        make = SineFilter(
            heads * count, self.l_max, self.emb_dim, self.filter_order, self.num_inner_mlps,
            self.sine_frequency, self.fast_decay, self.slow_decay,
            dtype=accumulation_dtype(x), init_std=self.init_std, name="filter",
        )  # fmt: skip
        skip = self.param("skip", named(nn.initializers.normal(1.0), "embed"), (heads * count,))
        return jnp.split(make(taps), count, axis=1), jnp.split(skip, count)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        dtype = self.dtype if dtype is None else dtype
        slots = self.l_max if max_length is None else min(max_length, self.l_max)
        channels = self.d_model * self.head_dim
        return HyenaState(
            ops.init_short_conv_state(batch_size, (self.order + 1) * self.d_model, self.kernel_size, dtype),
            tuple(
                ops.init_long_conv_state(batch_size, slots, channels, dtype) for _ in range(self.order - 1)
            ),
        )

    def state_size(self, length: int) -> int:
        """d N per long convolution (Based, appendix E.2); p times that with heads of width p."""
        return (self.order - 1) * self.d_model * self.head_dim * length
