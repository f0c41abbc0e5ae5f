"""RWKV-7's time mixing: a generalised delta rule with gates per channel (Peng et al. 2025).

    x_i = x + (x~ - x) mu_i for i in r, w, k, v, a, g;   x~ = the previous token
    r, k, v = x_r W_r, x_k W_k, x_v W_v;   a = sigmoid(LoRA_a(x_a));   g = sigmoid(x_g G_1) G_2
    log w = -e^{-1/2} sigmoid(LoRA_w(x_w)), LoRA_w with tanh inside
    kk = l2norm(k * k_k);   k <- k * (1 + (a - 1) * k_a)
    S_t = diag(w_t) S_{t-1} - (a_t * kk_t) (kk_t^T S_{t-1}) + k_t v_t^T,   o_t = S_t^T r_t
    y = ((GroupNorm(o) + (sum_c r k r_k) v) * g) W_o

Per head (spec of Zoology 3.11). RWKV-7 also blends the first layer's values into those of deeper layers; not
here, as nothing passes them on in Zoology's code.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Share, Size
from based_jax.mixers.contract import Card, Mixer, Projection, default_heads, named
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.stream import Stream
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect, expect_divisible

HEADS = ("heads", "head_dim")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RWKV7State:
    """The last token, and the matrix per head."""

    shift: ops.ShortConvState
    memory: ops.LinearRecurrenceState

    @property
    def stream(self) -> Stream:
        """How far each row has come."""
        return self.memory.stream


class RWKV7(Mixer):
    """RWKV-7 time mixing.

    Attributes:
        head_dim: channels per head; default 64, or the next larger divisor of d_model.
        decay_rank, gate_rank, rate_rank: inner widths of the low-rank maps to w, g and a.
        removal_init: initial k_k, 0.85 in RWKV-7's code. From Zoology's 0 it never moves, and nothing is ever
            erased: kk enters in pairs, so that its gradient is zero there.
        norm_eps: of the group norm, times head_dim.
        implementation: of `ops.generalized_delta_rule`.
    """

    card: ClassVar[Card] = Card(
        equation="S_t = diag(w_t) S_{t-1} - (a_t * kk_t) (kk_t^T S_{t-1}) + k_t v_t^T",
        training="N (C + d_h) D",
        state="D d_h",
        decoding="D d_h",
        source="Peng et al. 2025; Zoology's code",
        parity=(
            "zoology/rwkv7",
            "ops/dplr",
        ),
    )

    head_dim: Size | None = None
    decay_rank: Size = 16
    gate_rank: Size = 64
    rate_rank: Size = 16
    removal_init: Share = 0.85
    norm_eps: Epsilon = 1e-5
    implementation: str | None = None

    @nn.nowrap
    def layout(self) -> tuple[int, int]:
        """Heads and channels per head."""
        if self.head_dim is not None:
            expect_divisible("d_model", self.d_model, "head_dim", self.head_dim)
            return self.d_model // self.head_dim, self.head_dim
        heads = default_heads(self.d_model)
        return heads, self.d_model // heads

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
        _, width = shape = self.layout()
        wide = accumulation_dtype(x)
        context: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "return_state": True}
        options: dict[str, Any] = {"dtype": self.dtype, "init_std": self.init_std}

        def per_channel(name: str, value: float) -> Array:
            return self.param(name, named(nn.initializers.constant(value), *HEADS), shape)

        previous, shift = ops.token_shift(x, initial_state=None if state is None else state.shift, **context)
        mix = self.param("mix", named(nn.initializers.zeros_init(), None, "embed"), (6, self.d_model))
        x_r, x_w, x_k, x_v, x_a, x_g = (x + (previous - x) * mu for mu in mix.astype(self.dtype))

        def heads_of(x: Array, name: str) -> Array:
            return Projection(shape, ("embed", *HEADS), name=name, **options)(x)

        def low_rank(x: Array, name: str, activation: Any, bias: bool) -> Array:
            rank = getattr(self, f"{name}_rank")
            expect(rank >= 1, f"{name}_rank", rank, "at least 1")
            inner = Projection((rank,), ("embed", None), name=f"{name}_down", **options)(x)
            return Projection(shape, (None, *HEADS), bias=bias, name=f"{name}_up", **options)(
                activation(inner)
            )

        r, k, v = heads_of(x_r, "receptance"), heads_of(x_k, "key"), heads_of(x_v, "value")
        log_decay = -math.exp(-0.5) * jax.nn.sigmoid(low_rank(x_w, "decay", jnp.tanh, True).astype(wide))
        rate = jax.nn.sigmoid(low_rank(x_a, "rate", lambda x: x, True).astype(wide))
        gate = low_rank(x_g, "gate", jax.nn.sigmoid, False)
        # Rounded to bfloat16, kk is not of unit length, and the state would grow by its error.
        removal = ops.l2_norm(k.astype(wide) * per_channel("removal", self.removal_init))
        k = k * (1 + (rate - 1) * per_channel("key_rate", 0.0))
        y, memory = ops.generalized_delta_rule(
            r, k, v, -removal, removal * rate, log_decay, scale=1.0,
            initial_state=None if state is None else state.memory, implementation=self.implementation,
            **context,
        )  # fmt: skip

        scale, bias = per_channel("norm_scale", 1.0), per_channel("norm_bias", 0.0)
        y = ops.layer_norm(y, scale, bias, self.norm_eps * width)
        own = jnp.sum(r * k * per_channel("bonus", 0.0), axis=-1, keepdims=True)
        y = (y + own * v) * gate
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        y = Projection(
            (self.d_model,), (*HEADS, "embed"), inputs=2, dtype=self.dtype, init_std=out_std, name="out"
        )(y)
        return y, None if state is None else RWKV7State(shift, memory)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        heads, width = self.layout()
        wide = jnp.promote_types(self.dtype, jnp.float32)
        return RWKV7State(
            shift=ops.init_token_shift_state(
                batch_size, self.d_model, self.dtype if dtype is None else dtype
            ),
            memory=ops.init_linear_recurrence_state(batch_size, heads, width, width, wide),
        )

    def state_size(self, length: int) -> int:
        """64 d with heads of 64 channels (spec of Zoology 3.11); the last token is not counted."""
        heads, width = self.layout()
        return heads * width * width
