"""HyperAttention (Ustaomeroglu and Qu, section 6.1, appendix G): a softmax over tuples instead of keys.

    y_i = sum_{i >= j_1 >= j_2 ..} softmax(sum_r q_i k1_{j_1} k2_{j_2} .. / sqrt(d_h)) v1_{j_1} * v2_{j_2} ..

with the maps of `hyper_heads`. The authors published no code, and give no causal rule: i >= j_1 is ours.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Count
from based_jax.mixers.contract import Card, head_layout
from based_jax.mixers.hyper_heads import HyperHeads
from based_jax.mixers.softmax_heads import expect_max_length
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


class HyperAttention(HyperHeads):
    """Softmax over ordered tuples of tokens; no positions but the order.

    Without a window the state grows with the text, and `init_state` needs `max_length`.

    Attributes:
        left: past tokens that a query sees beside its own; None is all of them.
        scale: factor of the scores; None is d_h^(-1/2) (the paper prints none).
    """

    card: ClassVar[Card] = Card(
        equation="softmax over tokens j_1 >= j_2 of sum_r q_i k_j1 k_j2 / sqrt(d_h), times v_j1 * v_j2",
        training="N^3 D",
        state="2 D N",
        decoding="N^2 D",
        source="Ustaomeroglu and Qu, section 6.1 (no code published; the causal rule is ours)",
        parity=(),
    )

    left: Count | None = None
    scale: float | None = None

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
        _, _, width = head_layout(self.d_model, self.num_heads)
        y = ops.hyper_attention(
            self.project(x, "q", 1, width)[0], self.of_slots(x, "k", width), self.of_slots(x, "v", width),
            strict=self.strict, left=self.left, scale=width**-0.5 if self.scale is None else self.scale,
            initial_state=state, return_state=state is not None, segment_ids=segment_ids, mask=mask,
        )  # fmt: skip
        if state is not None:
            y, state = y
        return self.read_out(y), state

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        heads, _, width = head_layout(self.d_model, self.num_heads)
        expect(self.left is None or self.left >= 0, "left", self.left, "None or at least 0")
        slots = expect_max_length(max_length) if self.left is None else self.left + 1
        dtype = jnp.dtype(self.dtype if dtype is None else dtype)
        return ops.init_kv_cache(batch_size, slots, heads, self.maps * width, self.maps * width, dtype)

    def state_size(self, length: int) -> int:
        """2 d N as attention's where slots share their maps, else n - 1 times as much; N at most left + 1."""
        tokens = length if self.left is None else min(length, self.left + 1)
        return 2 * self.maps * self.d_model * tokens
