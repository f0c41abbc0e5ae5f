"""Hyena: gates around long implicit convolutions (Hyena, section 3; Zoology's code).

    x_1, ..., x_n, v = split(conv_3(x W_in + b_in));   v <- h_i * (v x_i) + D_i (v x_i)   for i < n
    y = (v x_n) W_out + b_out

n is the order, h_i the filters of `long_filters.SineFilter`. With several heads (the multi-head Hyena of
Zoology's appendix) the products are outer products: a head of width p convolves the p^2 entries of x_1 v^T
with one filter, then contracts them with x_2.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Layers, Length, Positive, Repeats, Size
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.mixers.initializers import named, normal
from based_jax.mixers.long_filters import SineFilter, slots_needed, taps_needed
from based_jax.mixers.module import find_stream
from based_jax.ops.core.kv_cache import expect_capacity
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_divisible


class HyenaState(NamedTuple):
    """The last inputs of the convolutions."""

    short: ops.ShortConvState
    long: tuple[ops.LongConvState, ...]
    """one per filter"""


@register("hyena")
class Hyena(Mixer):
    """Hyena operator for at most `l_max` tokens. Its state grows with the text, up to l_max.

    Attributes:
        order: number of gates; there are order - 1 long convolutions.
        num_heads: 1 convolves channel by channel; more take outer products within heads (order 2 only).
        l_max: maximum tokens of a text, and length of the filters.
        kernel_size: taps of the short convolution.
        emb_dim, filter_order, num_inner_mlps: features of a position, hidden units and inner layers of the
            filters' MLP.
        sine_frequency: initial frequency of the sines; the papers' language models have 14.
        fast_decay, slow_decay: shares of l_max after which the fixed decay is 0.01, for the last and the
            first channel; the papers' language models have slow_decay 1.2; 1e12 for both disables decay.
        learned_positions: train a position's features.
        implementation: passed to `ops.long_conv`.
    """

    order: Repeats = 2
    num_heads: Size = 1
    l_max: Length = 1024
    kernel_size: Repeats = 3
    emb_dim: Repeats = 3
    filter_order: Size = 64
    num_inner_mlps: Layers = 2
    sine_frequency: Positive = 1.0
    fast_decay: Positive = 0.3
    slow_decay: Positive = 1.5
    learned_positions: bool = True
    implementation: str | None = None

    @property
    def head_dim(self) -> int:
        """Width p of a head; 1 if channels are convolved separately."""
        expect(self.order >= 2, "order", self.order, "at least 2")
        expect_divisible("d_model", self.d_model, "num_heads", self.num_heads)
        expect(self.num_heads == 1 or self.order == 2, "order", self.order, "2 with several heads")
        return 1 if self.num_heads == 1 else self.d_model // self.num_heads

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        batch, length, width = x.shape
        head_dim, parts = self.head_dim, self.order + 1
        limit = f"l_max = {self.l_max} tokens, the length of the filters"
        expect_capacity(find_stream(state), length, context.mask, self.l_max, limit)

        inner = self.linear((parts, width), "embed", None, "mlp", bias=True, name="in_proj")(x)
        inner = inner.reshape(batch, length, parts * width)
        taps, bias = self.conv_params(self.kernel_size, parts * width, "mlp")
        inner, short = context.run(ops.short_conv, inner, taps, bias, initial_state=state and state.short)
        # Heads of p channels; the factors of an outer product are (B, N, H, p, 1) and (B, N, H, 1, p).
        *gates, v = jnp.split(inner.reshape(batch, length, parts, -1, head_dim, 1), parts, axis=2)
        gates, v = [gate[:, :, 0] for gate in gates], v[:, :, 0].swapaxes(-1, -2)
        filters, skips = self._filters(taps_needed(self.l_max, length, state and state.long[0]))
        long: list[State] = []
        for index, (gate, kernel, skip) in enumerate(zip(gates[:-1], filters, skips, strict=True)):
            product = gate * v
            options = {"implementation": self.implementation, "initial_state": state and state.long[index]}
            options["skip"] = jnp.repeat(skip, head_dim**2)
            kernel = jnp.repeat(kernel, head_dim**2, axis=1)
            y, kept = context.run(ops.long_conv, product.reshape(batch, length, -1), kernel, **options)
            long.append(kept)
            v = y.reshape(product.shape)
        y = jnp.sum(v * gates[-1], axis=-2).reshape(batch, length, width)
        y = self.to_output("mlp", bias=True, name="out")(y)
        if context.has_state:
            # The filters end after l_max taps. Under `jit` a longer row cannot raise, so it gives NaN.
            y = nan_unless((context.stream.length <= self.l_max)[:, None, None], y)
        return y, HyenaState(short, tuple(long))

    @nn.nowrap
    def _filters(self, taps: int) -> tuple[list[Array], list[Array]]:
        """Return the kernels (taps, H) and skips (H,) of each long convolution."""
        heads, count = self.d_model // self.head_dim, self.order - 1
        shared = ("l_max", "emb_dim", "filter_order", "num_inner_mlps", "sine_frequency")
        shared += ("fast_decay", "slow_decay", "learned_positions", "init_std")
        options: dict[str, Any] = {name: getattr(self, name) for name in shared}
        make = SineFilter(heads * count, dtype=self.wide, name="filter", **options)
        kernels = jnp.split(make(taps), count, axis=1)
        skip = self.param("skip", named(normal(1.0), "embed"), (heads * count,))
        return kernels, jnp.split(skip, count)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        slots = slots_needed(self.l_max, max_length)
        channels, inputs = self.d_model * self.head_dim, (self.order + 1) * self.d_model
        long = (ops.init_long_conv_state(batch_size, slots, channels, dtype) for _ in range(self.order - 1))
        return HyenaState(ops.init_short_conv_state(batch_size, inputs, self.kernel_size, dtype), tuple(long))

    def state_size(self, length: int) -> int:
        """Return d N per long convolution (Based, appendix E.2); p times that with heads of width p."""
        return (self.order - 1) * self.d_model * self.head_dim * length
