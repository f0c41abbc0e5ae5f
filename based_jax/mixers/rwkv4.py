"""RWKV-4's time mixing (RWKV, section 3.1; spec of Zoology 3.9).

    x~ = the previous token;   k = (mu_k x + (1 - mu_k) x~) W_k, likewise v and r
    y = (sigmoid(r) * wkv(k, v)) W_out,   per channel, with w = -exp(decay):
    wkv_t = (sum_{i<t} e_i v_i + e^{u + k_t} v_t) / (sum_{i<t} e_i + e^{u + k_t}),   e_i = e^{(t-1-i) w + k_i}

An RWKV block is two residual layers without an MLP, this mixer and `rwkv_channel_mix`: the latter reads the
previous token too, so it has a state and is a mixer.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.mixers.contract import Card, Projection
from based_jax.mixers.rwkv_layer import RWKVLayer, constant
from based_jax.ops.stream import Stream
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RWKV4State:
    """The last token, and the average's two sums."""

    shift: ops.ShortConvState
    wkv: ops.WKVState

    @property
    def stream(self) -> Stream:
        """How far each row has come."""
        return self.wkv.stream


class RWKV4(RWKVLayer):
    """RWKV-4 time mixing: a decayed exponential average, gated.

    Attributes:
        implementation: of `ops.wkv`.
    """

    card: ClassVar[Card] = Card(
        equation="sigmoid(r) * sum_i e^{(t-1-i) w + k_i} v_i / sum_i e^{(t-1-i) w + k_i}",
        training="N D",
        state="4 D",
        decoding="D",
        source="Peng et al. 2023; Zoology's code",
        parity=("zoology/rwkv4_time_mix",),
    )

    implementation: str | None = None

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
        context: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "return_state": True}
        previous, shift = ops.token_shift(x, initial_state=None if state is None else state.shift, **context)
        depth, mix = self.depth(), self.initial_mix()
        heads = ((self.d_model,), ("mlp",))
        k = self.blended("key", mix, x, previous, *heads)
        v = self.blended("value", mix + 0.3 * depth, x, previous, *heads)
        r = self.blended("receptance", mix**0.5, x, previous, *heads)
        channel = np.arange(self.d_model)
        decay = -5 + 8 * (channel / max(self.d_model - 1, 1)) ** (0.7 + 1.3 * depth)
        bonus = np.log(0.3) + 0.5 * ((channel + 1) % 3 - 1)
        y, sums = ops.wkv(
            k, v,
            -jnp.exp(self.param("decay", constant(decay, "mlp"), (self.d_model,))),
            self.param("bonus", constant(bonus, "mlp"), (self.d_model,)),
            initial_state=None if state is None else state.wkv, implementation=self.implementation, **context,
        )  # fmt: skip
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        y = Projection((self.d_model,), ("mlp", "embed"), dtype=self.dtype, init_std=out_std, name="out")(
            jax.nn.sigmoid(r) * y
        )
        return y, None if state is None else RWKV4State(shift, sums)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        wide = jnp.promote_types(self.dtype, jnp.float32)
        return RWKV4State(
            shift=ops.init_token_shift_state(
                batch_size, self.d_model, self.dtype if dtype is None else dtype
            ),
            wkv=ops.init_wkv_state(batch_size, self.d_model, wide),
        )

    def state_size(self, length: int) -> int:
        """The last token, two sums and their exponent, per channel; the papers give no formula."""
        return 4 * self.d_model
