"""HyperFeatureAttention: softmax attention whose scores are products (Ustaomeroglu and Qu, Definition F.3).

    q^a, k^a = rotary(x W_q^a), rotary(x W_k^a)   A factors of d_h / A channels per head;   v = x W_v
    y_i = sum_{j<=i} softmax_j(prod_a q^a_i . k^a_j / sqrt(d_h / A)) v_j,   out = concat_heads(y) W_o
    with `value_product`:                                             v = prod_a x W_v^a

A head of order A multiplies A feature scores; order 1 is ordinary attention, and the authors recommend mixing
both. They have published no code, and print no scale (ours is per factor) and no mask. Orders here are A;
those of their Table 2 seem to be A + 1, since ordinary heads have order 2 there.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Positive, Repeats, Share, Size
from based_jax.mixers.contract import Context, Mixer, head_layout, register
from based_jax.mixers.softmax_heads import expect_max_length
from based_jax.typing import Array, Float, Positions, State
from based_jax.validate import expect, expect_divisible


class HyperFeatureAttentionState(NamedTuple):
    """Keys (their factors concatenated) and values of each run of neighbouring heads of one order."""

    caches: tuple[ops.KVCache, ...]


@register("hyper_feature_attention")
class HyperFeatureAttention(Mixer):
    """Attention whose scores are products. Its state grows with the text: `init_state` needs `max_length`.

    It has 4 d^2 parameters, as attention; (3 + A) d^2 with `value_product`.

    Attributes:
        num_heads: heads; default one for each of `orders`, or d_model / 64.
        orders: A of all heads, or of each head; a divisor of d_h. Default 2, or 1 if d_h is odd.
        value_product: use products of A maps of x as values.
        scale: factor of each factor's scores; default (d_h / A)^(-1/2); the paper's formula has 1.
        rotary_fraction: share of each factor's channels with rotary embeddings (Remark F.5), rounded down to
            pairs; 0 for none.
        rotary_base: base of the rotary wavelengths.
        causal: False attends to the whole segment, as the paper's definition, and has no state.
        chunk_size: queries per block; the result does not depend on it.
    """

    num_heads: Size | None = None
    orders: Repeats | Sequence[Repeats] | None = None
    value_product: bool = False
    scale: float | None = None
    rotary_fraction: Share = 1.0
    rotary_base: Positive = 10000.0
    causal: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]
    chunk_size: Size | None = None

    @property
    def layout(self) -> tuple[tuple[int, ...], int]:
        """The order of each head, and the channels of a head."""
        heads, given = self.num_heads, self.orders
        if heads is None and isinstance(given, Sequence):
            heads = len(given)
        heads, _, head_dim = head_layout(self.d_model, heads)
        if given is None:
            given = 1 if head_dim % 2 else 2
        orders = tuple(given) if isinstance(given, Sequence) else (given,) * heads
        expect(len(orders) == heads, "orders", orders, f"an order for each of the {heads} heads")
        for order in orders:
            expect_divisible("channels of a head", head_dim, "order", order)
        return orders, head_dim

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Order and number of neighbouring heads of the same order."""
        return [(order, len(list(run))) for order, run in groupby(self.layout[0])]

    def setup(self) -> None:
        orders, head_dim = self.layout
        heads = len(orders)
        self.q, self.k = self.to_heads(heads, head_dim), self.to_heads(heads, head_dim)
        self.v = self.to_heads(sum(orders) if self.value_product else heads, head_dim)
        self.out = self.to_output("heads", "head_dim")

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        counts = [count for _, count in self.runs]
        values = [order * count for order, count in self.runs] if self.value_product else counts
        runs = (_runs(self.q(x), counts), _runs(self.k(x), counts), _runs(self.v(x), values))
        outputs: list[Array] = []
        caches: list[State] = []
        for number, ((order, count), q, k, v) in enumerate(zip(self.runs, *runs, strict=True)):
            if self.value_product:
                v = v.reshape(*v.shape[:2], count, order, -1).prod(axis=3)
            qs, ks = (self._factors(heads, order, context.positions) for heads in (q, k))
            scale = qs[0].shape[-1] ** -0.5 if self.scale is None else self.scale
            options: dict[str, Any] = {"scale": scale, "chunk_size": self.chunk_size}
            options |= {"initial_state": state and state.caches[number]}
            y, cache = context.run(ops.hyper_feature_attention, qs, ks, v, self.causal, **options)
            outputs.append(y)
            caches.append(cache)
        return self.out(jnp.concatenate(outputs, axis=2)), HyperFeatureAttentionState(tuple(caches))

    def _factors(
        self, x: Float[Array, "B N H K"], order: int, positions: Positions
    ) -> tuple[Float[Array, "B N H _"], ...]:
        """Return the factors of queries or keys, each turned by its position."""
        batch, length, heads, channels = x.shape
        width = channels // order
        x = x.reshape(batch, length, heads * order, width)
        turned = int(self.rotary_fraction * width) // 2 * 2
        if turned:
            x = ops.rotary(x, positions, dim=turned, base=self.rotary_base)
        return tuple(jnp.unstack(x.reshape(batch, length, heads, order, width), axis=3))

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        expect(self.causal, "causal", self.causal, "True for a state: the other form reads whole rows")
        _, width = self.layout
        slots = expect_max_length(max_length)
        caches = (ops.init_kv_cache(batch_size, slots, n, width, width, dtype) for _, n in self.runs)
        return HyperFeatureAttentionState(tuple(caches))

    def state_size(self, length: int) -> int:
        """Return 2 d N, as for attention: a key's factors have d_h channels in all."""
        orders, head_dim = self.layout
        return 2 * len(orders) * head_dim * length


def _runs(heads: Float[Array, "B N H K"], counts: list[int]) -> list[Array]:
    return jnp.split(heads, list(accumulate(counts))[:-1], axis=2)
