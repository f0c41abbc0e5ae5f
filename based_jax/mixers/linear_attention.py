"""Based's linear attention with the second-order Taylor feature map (Based, sections 4.1 and C).

    q, k = x W_q, x W_k   (H heads of feature_dim channels);   v = x W_v   (H heads of d_model / H)
    y_i = sum_{j<=i} g_i gamma^(i-j) p(q_i.k_j) v_j / sum_{j<=i} p(q_i.k_j),   p(s) = 1 + s' + s'^2 / 2
    out = concat_heads(y) W_o,                                                 s' = s / sqrt(feature_dim)

gamma and g are Appendix C's optional decay: gamma_h = 1 - 2^(decay_const - h) fixed per head, and the
coarse input-dependent gate g = x W_dec + b_dec. The released models run without either.
"""

from typing import Any, ClassVar

from based_jax import ops
from based_jax.mixers.contract import Card, Mixer, Projection, head_layout
from based_jax.ops.feature_maps import symmetric_taylor_size
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect, expect_choice

DECAYS = ("none", "fixed", "gated")


class LinearAttention(Mixer):
    """Taylor linear attention; no positions.

    Attributes:
        num_heads: heads H; default d_model / 64.
        feature_dim: query/key channels per head (the paper's d').
        eps: added to the normaliser.
        decay: "none", "fixed" (gamma), or "gated" (gamma and the gate g).
        decay_const: exponent of gamma for head 0.
        implementation: of `ops.taylor_attention`, and of `ops.taylor_step` for one token.
    """

    card: ClassVar[Card] = Card(
        equation="sum_j p(q_i.k_j) v_j / sum_j p(q_i.k_j), p(s) = 1 + s + s^2/2",
        training="N F D",
        state="F (D + H), F = 1 + 3d'/2 + d'^2/2",
        decoding="F D",
        source="Based, section 4.1",
        parity=(
            "based/linear_attention_taylor",
            "feature_maps/linear_attention_taylor_exp",
        ),
    )

    num_heads: int | None = None
    feature_dim: int = 16
    eps: float = 1e-12
    decay: str = "none"
    decay_const: float = -3.0
    implementation: str | None = None

    def setup(self) -> None:
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        expect(self.feature_dim >= 1, "feature_dim", self.feature_dim, "at least 1")
        expect_choice("decay", self.decay, DECAYS)
        options: dict[str, Any] = {"dtype": self.dtype, "init_std": self.init_std}
        axes = ("embed", "heads", "head_dim")
        self.q = Projection((heads, self.feature_dim), axes, **options)
        self.k = Projection((heads, self.feature_dim), axes, **options)
        self.v = Projection((heads, head_dim), axes, **options)
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        self.out = Projection(
            (self.d_model,), ("heads", "head_dim", "embed"), inputs=2, dtype=self.dtype, init_std=out_std
        )
        if self.decay == "gated":
            self.gate = Projection((heads,), ("embed", "heads"), bias=True, **options)

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
        heads, _, _ = head_layout(self.d_model, self.num_heads)
        log_decay = None
        if self.decay != "none":
            log_decay = ops.fixed_log_decay(heads, self.decay_const)[None, None]
        q, k, v = self.q(x), self.k(x), self.v(x)
        options: dict[str, Any] = {"eps": self.eps, "implementation": self.implementation}
        if state is not None and x.shape[1] == 1 and log_decay is segment_ids is mask is None:
            y, state = ops.taylor_step(q[:, 0], k[:, 0], v[:, 0], state, **options)
            y = y[:, None]
        else:
            options |= {"log_decay": log_decay, "segment_ids": segment_ids, "mask": mask}
            if state is None:
                y = ops.taylor_attention(q, k, v, **options)
            else:
                y, state = ops.taylor_attention(q, k, v, initial_state=state, return_state=True, **options)
        if self.decay == "gated":
            y = y * self.gate(x)[..., None]
        return self.out(y), state

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        return ops.init_taylor_state(batch_size, heads, self.feature_dim, head_dim)

    def state_size(self, length: int) -> int:
        """(d + 1) (1 + 3 d'/2 + d'^2/2) per head (Based, appendix E.2)."""
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        return heads * (head_dim + 1) * symmetric_taylor_size(self.feature_dim)
