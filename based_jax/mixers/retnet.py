"""RetNet's multi-scale retention (Sun et al. 2023, section 2; Zoology's code).

    q, k = rotary(x W_q), rotary(x W_k);   v = x W_v;   gamma_h = 1 - 2^(-5 - h) for head h
    S_t = gamma S_{t-1} + k_t v_t^T,   y_t = S_t^T q_t / sqrt(d_k)        (recurrent)
    Y = ((Q K^T) * D) V / sqrt(d_k),   D_nm = gamma^(n - m) for n >= m    (parallel, the same numbers)
    out = (GroupNorm(y) * silu(x W_g)) W_o        or RMSNorm, whose scale the heads share (fla's layer)

xPos is rotary embeddings with a decay; gamma is that decay. Of the paper's normalisations only 1 / sqrt(d_k)
is applied: the others scale a whole head of a token, which the norm per head cancels.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Factor, Positive
from based_jax.mixers.contract import Context, register
from based_jax.mixers.gated_heads import GatedHeads, activation
from based_jax.mixers.initializers import ones, zeros
from based_jax.typing import Array, Float, State
from based_jax.validate import expect_choice


@register("retnet")
class RetNet(GatedHeads):
    """Multi-scale retention.

    Attributes:
        num_heads: heads H; default d_model / 256, as in the paper, and at least 1.
        expand_v: 2 in the paper; 5 / 3 in Zoology's language model (768 to 1280).
        chunk_size: tokens per chunk (128 in Zoology's language model); the result does not depend on it.
        rotary: rotate queries and keys by their positions, counted from the start of each segment.
        rotary_base: base of the wavelengths.
        rotary_interleaved: pair neighbouring channels instead of a head's halves.
        norm: "layer", with scales and biases per head, or "rms", with scales shared by the heads.
    """

    expand_v: Factor = 2.0
    rotary: bool = True
    rotary_base: Positive = 10000.0
    rotary_interleaved: bool = True
    norm: str = "layer"

    @property
    def most_heads(self) -> int:
        return max(self.d_model // 256, 1)

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        heads, key_size, _ = self.layout()
        q, k, v = self.projected(x)
        q, k = (activation("qk_activation", self.qk_activation)(a) for a in (q, k))
        if self.rotary and key_size > 1:  # an odd channel stays as it is
            options: dict[str, Any] = {"dim": key_size - key_size % 2, "base": self.rotary_base}
            options["interleaved"] = self.rotary_interleaved
            q, k = (ops.rotary(a, context.positions, **options) for a in (q, k))
        k, v = self.for_all_heads(k, v)
        y, state = self.recur(q, k, v, ops.fixed_log_decay(heads)[None, None], state, context)
        return self.read_out(self._normed(y), x), state

    @nn.nowrap
    def _normed(self, y: Float[Array, "B N H V"]) -> Float[Array, "B N H V"]:
        expect_choice("norm", self.norm, ("layer", "rms"))
        if self.norm == "rms":
            return self.rms_normed(y)
        shape = y.shape[-2:]
        scale, bias = jnp.ones(shape), None
        if self.norm_affine:
            scale = self.param("norm_scale", ones("heads", "head_dim"), shape)
            bias = self.param("norm_bias", zeros("heads", "head_dim"), shape)
        return ops.layer_norm(y, scale, bias, self.norm_eps)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        return ops.init_linear_recurrence_state(batch_size, *self.layout(), self.wide)
