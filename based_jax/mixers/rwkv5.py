"""RWKV-5's time mixing, "Eagle" (Peng et al. 2024, section 4; Based, Table 12; spec of Zoology 3.10).

    x~ = the previous token;   r = (mu_r x + (1 - mu_r) x~) W_r, likewise k, v and g
    y_t = (S_{t-1} + diag(u) k_t v_t^T)^T r_t,   S_t = diag(exp(-exp(decay))) S_{t-1} + k_t v_t^T   per head
    out = (GroupNorm(y / 8) * silu(g)) W_out

The bonus u weighs a token's own key and value, which enter the state behind it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Size
from based_jax.mixers.contract import Card, Projection, head_layout, named
from based_jax.mixers.rwkv_layer import RWKVLayer, constant
from based_jax.ops.stream import Stream
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect_divisible

DIVISOR = 8
"""of the heads before their norm; with the norm's epsilon it decides how small a head counts as silent"""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RWKV5State:
    """The last token, and the matrix per head."""

    shift: ops.ShortConvState
    memory: ops.LinearRecurrenceState

    @property
    def stream(self) -> Stream:
        """How far each row has come."""
        return self.memory.stream


class RWKV5(RWKVLayer):
    """RWKV-5 time mixing: a linear recurrence with a learned decay per channel.

    Attributes:
        head_size: channels per head; default 64, or what comes closest and divides.
        norm_eps: of the group norm.
        chunk_size: tokens per chunk; the result does not depend on it.
        implementation: of `ops.linear_recurrence`.
    """

    card: ClassVar[Card] = Card(
        equation="S_t = diag(w) S_{t-1} + k_t v_t^T, y_t = r_t (S_{t-1} + diag(u) k_t v_t^T)",
        training="N (C + d_h) D",
        state="D d_h",
        decoding="D d_h",
        source="Peng et al. 2024; Based, Table 12",
        parity=("zoology/rwkv5_time_mix",),
    )

    head_size: Size | None = None
    norm_eps: Epsilon = 1e-5
    chunk_size: Size | None = None
    implementation: str | None = None

    @nn.nowrap
    def layout(self) -> tuple[int, int]:
        """Heads, and channels per head."""
        if self.head_size is None:
            heads, _, size = head_layout(self.d_model, None)
            return heads, size
        expect_divisible("d_model", self.d_model, "head_size", self.head_size)
        return self.d_model // self.head_size, self.head_size

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
        heads = self.layout()
        context: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "return_state": True}
        previous, shift = ops.token_shift(x, initial_state=None if state is None else state.shift, **context)
        depth, mix = self.depth(), self.initial_mix()
        axes = ("heads", "head_dim")
        r = self.blended("receptance", mix**0.5, x, previous, heads, axes)
        k = self.blended("key", mix, x, previous, heads, axes)
        v = self.blended("value", mix + 0.3 * depth, x, previous, heads, axes)
        g = self.blended("gate", mix**0.5, x, previous, heads, axes)
        channel = np.arange(self.d_model)
        part = channel / max(self.d_model - 1, 1)
        decay = -6 + 5 * part ** (0.7 + 1.3 * depth)
        bonus = depth * (1 - part) + 0.1 * ((channel + 1) % 3 - 1)
        y, memory = ops.linear_recurrence(
            r, k, v,
            -jnp.exp(self.param("decay", constant(decay, *axes), heads))[None, None],
            bonus=self.param("bonus", constant(bonus, *axes), heads),
            scale=1 / DIVISOR, initial_state=None if state is None else state.memory,
            chunk_size=self.chunk_size, implementation=self.implementation, **context,
        )  # fmt: skip
        scale = self.param("norm_scale", named(nn.initializers.ones_init(), *axes), heads)
        bias = self.param("norm_bias", named(nn.initializers.zeros_init(), *axes), heads)
        y = ops.layer_norm(y, scale, bias, self.norm_eps) * jax.nn.silu(g)
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        y = Projection(
            (self.d_model,), (*axes, "embed"), inputs=2, dtype=self.dtype, init_std=out_std, name="out"
        )(y)
        return y, None if state is None else RWKV5State(shift, memory)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        heads, size = self.layout()
        dtype = self.dtype if dtype is None else dtype
        wide = jnp.promote_types(self.dtype, jnp.float32)
        return RWKV5State(
            shift=ops.init_token_shift_state(batch_size, self.d_model, dtype),
            memory=ops.init_linear_recurrence_state(batch_size, heads, size, size, wide),
        )

    def state_size(self, length: int) -> int:
        """d head_size, as the papers count RWKV-7 (spec of Zoology 3.11); the last token is not counted."""
        heads, size = self.layout()
        return heads * size * size
