"""RWKV-5's time mixing, "Eagle" (Peng et al. 2024, section 4; Based, Table 12; Zoology's code).

    x~ = the previous token;   r = (mu_r x + (1 - mu_r) x~) W_r, likewise k, v and g
    y_t = (S_{t-1} + diag(u) k_t v_t^T)^T r_t,   S_t = diag(exp(-exp(decay))) S_{t-1} + k_t v_t^T   per head
    out = (GroupNorm(y / 8) * silu(g)) W_out

The bonus u weighs a token's own key and value, which enter the state after it.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Size
from based_jax.mixers.contract import Context, register
from based_jax.mixers.initializers import ones, zeros
from based_jax.mixers.rwkv_layer import RWKVLayer, RWKVMemory, RWKVMemoryState, constant
from based_jax.typing import Array, Float, State

DIVISOR = 8
"""divides the heads before their norm; together with epsilon it sets which heads count as zero"""


@register("rwkv5")
class RWKV5(RWKVLayer, RWKVMemory):
    """RWKV-5 time mixing: a linear recurrence with a learned decay per channel.

    Attributes:
        head_size: channels per head; default 64, or the next larger divisor of d_model.
        norm_eps: epsilon of the group norm.
        chunk_size: tokens per chunk; the result does not depend on it.
        implementation: passed to `ops.linear_recurrence`.
    """

    head_option: ClassVar[str] = "head_size"

    head_size: Size | None = None
    norm_eps: Epsilon = 1e-5
    chunk_size: Size | None = None
    implementation: str | None = None

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        heads, axes = self.layout(), ("heads", "head_dim")
        previous, shift = context.run(ops.token_shift, x, initial_state=state and state.shift)
        depth, mix = self.depth(), self.initial_mix()
        r = self.blended("receptance", mix**0.5, x, previous, heads, axes)
        k = self.blended("key", mix, x, previous, heads, axes)
        v = self.blended("value", mix + 0.3 * depth, x, previous, heads, axes)
        g = self.blended("gate", mix**0.5, x, previous, heads, axes)
        channel = np.arange(self.d_model)
        part = channel / max(self.d_model - 1, 1)
        decay = -6 + 5 * part ** (0.7 + 1.3 * depth)
        bonus = depth * (1 - part) + 0.1 * ((channel + 1) % 3 - 1)
        log_decay = -jnp.exp(self.param("decay", constant(decay, *axes), heads).astype(self.wide))[None, None]
        options: dict[str, Any] = {"chunk_size": self.chunk_size, "implementation": self.implementation}
        options |= {"scale": 1 / DIVISOR, "bonus": self.param("bonus", constant(bonus, *axes), heads)}
        options |= {"initial_state": state and state.memory}
        y, memory = context.run(ops.linear_recurrence, r, k, v, log_decay, **options)
        scale = self.param("norm_scale", ones(*axes), heads)
        bias = self.param("norm_bias", zeros(*axes), heads)
        y = ops.layer_norm(y, scale, bias, self.norm_eps) * jax.nn.silu(g)
        return self.to_output(*axes, name="out")(y), RWKVMemoryState(shift, memory)
