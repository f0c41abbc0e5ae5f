"""ScatterBrain: softmax in a window, random features behind it (Chen et al. 2021; spec of Zoology, 3.19).

    y_i = (sum_{i-left <= j <= i} exp(q_i.k_j) v_j + sum_{j < i-left} phi(q_i).phi(k_j) v_j) / normaliser

`ops.scatterbrain` has this form, and the one of Zoology's code, which normalises the two parts apart and is
not causal: the scale of its features is the largest key of the row.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Count, Share, States
from based_jax.mixers.contract import Card, head_layout, named
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


class ScatterBrain(SoftmaxHeads):
    """Window attention with a low-rank remainder, causal or as in Zoology's code.

    Attributes:
        left: past keys in the window, beside the query's own.
        feature_dim: random features F, an even number. Their directions are drawn once and never trained.
        causal: False is Zoology's form, which takes whole rows only: no state, segments or padding.
    """

    card: ClassVar[Card] = Card(
        equation="softmax over the last w keys and phi(q).phi(k) over older ones",
        training="N (w + F) D",
        state="2 D w + F (D + H)",
        decoding="2 D w + F D",
        source="Chen et al. 2021; Zoology's code",
        parity=("zoology/scatterbrain",),
    )

    rotary_fraction: Share = 0.0
    qkv_bias: bool = True
    out_bias: bool = True
    left: Count = 64
    feature_dim: States = 24
    causal: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def reach(self) -> int:
        expect(self.left >= 0, "left", self.left, "at least 0")
        return self.left

    def setup(self) -> None:
        super().setup()
        is_even = self.feature_dim >= 2 and self.feature_dim % 2 == 0
        expect(is_even, "feature_dim", self.feature_dim, "an even number, at least 2")
        _, _, head_dim = head_layout(self.d_model, self.num_heads)
        init = named(ops.gaussian_features, None, "head_dim")
        self.random_features = self.param("random_features", init, (self.feature_dim // 2, head_dim))

    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        q, k, v = self.equal_heads(x, state, segment_ids, positions, mask)
        directions = jax.lax.stop_gradient(self.random_features)
        if not self.causal:
            return self.out(ops.zoology_scatterbrain(q, k, v, directions, left=self.reach)), None
        y = ops.scatterbrain_attention(
            q, k, v, directions, left=self.reach, initial_state=state, return_state=state is not None,
            segment_ids=segment_ids, mask=mask, implementation=self.implementation,
        )  # fmt: skip
        y, state = (y, None) if state is None else y
        return self.out(y), state

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        self.expect_causal()
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        dtype = jnp.dtype(self.dtype if dtype is None else dtype)
        return ops.init_scatterbrain_state(
            batch_size, self.reach, heads, head_dim, head_dim, self.feature_dim, dtype
        )

    def state_size(self, length: int) -> int:
        """2 d w + F (d + H), as Zoology counts it: a window of w = `left` keys, and the sums."""
        heads, _, _ = head_layout(self.d_model, self.num_heads)
        return 2 * self.d_model * self.reach + self.feature_dim * (self.d_model + heads)
