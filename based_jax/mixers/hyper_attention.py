"""HyperAttention (Ustaomeroglu and Qu, section 6.1, appendix G): a softmax over tuples instead of keys.

    y_i = sum_{i >= j_1 >= j_2 ..} softmax(sum_r q_i k1_{j_1} k2_{j_2} .. / sqrt(d_h)) v1_{j_1} * v2_{j_2} ..

with the maps of `hyper_heads`. The authors published no code and give no causal rule: i >= j_1 is ours.
"""

from typing import Any

from flax import linen as nn

from based_jax import ops
from based_jax.fields import Count
from based_jax.mixers.contract import Context, head_layout, register
from based_jax.mixers.hyper_heads import HyperHeads
from based_jax.mixers.softmax_heads import expect_max_length
from based_jax.typing import Array, Float, State


@register("hyper_attention")
class HyperAttention(HyperHeads):
    """Softmax over ordered tuples of tokens, without position embeddings.

    Without a window the state grows with the text, and `init_state` needs `max_length`.

    Attributes:
        left: past tokens that a query sees besides its own; None for all.
        scale: factor of the scores; None for d_h^(-1/2) (the paper prints none).
    """

    left: Count | None = None
    scale: float | None = None

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        _, _, width = head_layout(self.d_model, self.num_heads)
        q, ks, vs = self.projected(x, width, width)
        scale = width**-0.5 if self.scale is None else self.scale
        options = {"strict": self.strict, "left": self.left, "scale": scale}
        y, state = context.run(ops.hyper_attention, q, ks, vs, initial_state=state, **options)
        return self.to_output("heads", "head_dim", name="out")(y), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, _, width = head_layout(self.d_model, self.num_heads)
        slots = expect_max_length(max_length) if self.left is None else self.left + 1
        return ops.init_kv_cache(batch_size, slots, heads, self.maps * width, self.maps * width, dtype)

    def state_size(self, length: int) -> int:
        """Return 2 d N as for attention if slots share their maps, else (n - 1) 2 d N; N at most left + 1."""
        tokens = length if self.left is None else min(length, self.left + 1)
        return 2 * self.maps * self.d_model * tokens
