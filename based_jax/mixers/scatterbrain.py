"""ScatterBrain: softmax in a window, random features beyond it (Chen et al. 2021; Zoology's code).

    y_i = (sum_{i-left <= j <= i} exp(q_i.k_j) v_j + sum_{j < i-left} phi(q_i).phi(k_j) v_j) / normaliser

`ops.scatterbrain` has this form and that of Zoology's code, which normalises the two sums separately and is
not causal: it scales its features by the largest key of the row.
"""

from typing import Any

import jax

from based_jax import ops
from based_jax.fields import Count, Share, States
from based_jax.mixers.contract import Context, register
from based_jax.mixers.initializers import named
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


@register("scatterbrain")
class ScatterBrain(SoftmaxHeads):
    """Window attention with a low-rank remainder, causal or as in Zoology's code.

    Attributes:
        left: past keys in the window, besides the query's own.
        feature_dim: random features F, an even number. Their directions are drawn once and never trained.
        causal: False is Zoology's form, which takes whole rows only: no state, segments or padding.
    """

    rotary_fraction: Share = 0.0
    qkv_bias: bool = True
    out_bias: bool = True
    left: Count = 64
    feature_dim: States = 24
    causal: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]

    def setup(self) -> None:
        super().setup()
        expect(self.feature_dim % 2 == 0, "feature_dim", self.feature_dim, "an even number, at least 2")
        _, _, head_dim = self.layout
        init = named(ops.gaussian_features, None, "head_dim")
        self.random_features = self.param("random_features", init, (self.feature_dim // 2, head_dim))

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        q, k, v = self.equal_heads(x, state, context)
        directions = jax.lax.stop_gradient(self.random_features)
        if not self.causal:
            return self.out(ops.zoology_scatterbrain(q, k, v, directions, left=self.left)), None
        options = {"left": self.left, "initial_state": state, "implementation": self.implementation}
        y, state = context.run(ops.scatterbrain_attention, q, k, v, directions, **options)
        return self.out(y), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        self.expect_causal()
        heads, _, width = self.layout
        sizes = self.left, heads, width, width, self.feature_dim
        return ops.init_linearized_state(batch_size, *sizes, dtype, self.wide)

    def state_size(self, length: int) -> int:
        """Return 2 d w + F (d + H), Zoology's count: a window of w = `left` keys, and the sums."""
        heads, _, _ = self.layout
        return 2 * self.d_model * self.left + self.feature_dim * (self.d_model + heads)
