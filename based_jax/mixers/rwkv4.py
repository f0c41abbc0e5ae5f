"""RWKV-4's time mixing (RWKV, section 3.1; Zoology's code).

    x~ = the previous token;   k = (mu_k x + (1 - mu_k) x~) W_k, likewise v and r
    y = (sigmoid(r) * wkv(k, v)) W_out,   per channel, with w = -exp(decay):
    wkv_t = (sum_{i<t} e_i v_i + e^{u + k_t} v_t) / (sum_{i<t} e_i + e^{u + k_t}),   e_i = e^{(t-1-i) w + k_i}

An RWKV block is two residual layers without an MLP, this mixer and `rwkv_channel_mix`. The latter also reads
the previous token, so it has a state and is a mixer.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.mixers.contract import Context, register
from based_jax.mixers.rwkv_layer import RWKVLayer, constant
from based_jax.typing import Array, Float, State


class RWKV4State(NamedTuple):
    """The last token, and the two sums of the average."""

    shift: ops.ShortConvState
    wkv: ops.WKVState


@register("rwkv4")
class RWKV4(RWKVLayer):
    """RWKV-4 time mixing: a decayed exponential average, gated.

    Attributes:
        implementation: passed to `ops.wkv`.
    """

    implementation: str | None = None

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        previous, shift = context.run(ops.token_shift, x, initial_state=state and state.shift)
        depth, mix = self.depth(), self.initial_mix()
        channels = (self.d_model,)
        k = self.blended("key", mix, x, previous, channels, ("mlp",))
        v = self.blended("value", mix + 0.3 * depth, x, previous, channels, ("mlp",))
        r = self.blended("receptance", mix**0.5, x, previous, channels, ("mlp",))
        channel = np.arange(self.d_model)
        decay = -5 + 8 * (channel / max(self.d_model - 1, 1)) ** (0.7 + 1.3 * depth)
        bonus = np.log(0.3) + 0.5 * ((channel + 1) % 3 - 1)
        w = -jnp.exp(self.param("decay", constant(decay, "mlp"), channels).astype(self.wide))
        u = self.param("bonus", constant(bonus, "mlp"), channels)
        options = {"initial_state": state and state.wkv, "implementation": self.implementation}
        y, sums = context.run(ops.wkv, k, v, w, u, **options)
        return self.to_output("mlp", name="out")(jax.nn.sigmoid(r) * y), RWKV4State(shift, sums)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        return RWKV4State(
            shift=ops.init_token_shift_state(batch_size, self.d_model, dtype),
            wkv=ops.init_wkv_state(batch_size, self.d_model, self.wide),
        )

    def state_size(self, length: int) -> int:
        """Return 4 d: the last token, two sums and their exponent; the papers give no formula."""
        return 4 * self.d_model
