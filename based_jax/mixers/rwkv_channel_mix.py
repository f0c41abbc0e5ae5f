"""RWKV-4's channel mixing (RWKV, section 3.1; Zoology's code): the other half of an RWKV block.

    x~ = the previous token;   k = relu((mu_k x + (1 - mu_k) x~) W_k)^2,   r = (mu_r x + (1 - mu_r) x~) W_r
    y = sigmoid(r) * (k W_v)

It replaces an MLP but reads the previous token, so it has a state and is a mixer: schedule it as a separate
layer after each time mixing, in a model with mlp = "none".
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Factor
from based_jax.mixers.contract import Context, register
from based_jax.mixers.rwkv_layer import RWKVLayer
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


@register("rwkv_channel_mix")
class RWKVChannelMix(RWKVLayer):
    """RWKV-4 channel mixing: a gated MLP on two neighbouring tokens.

    Attributes:
        expand: hidden width over d_model (3.5 in RWKV-5), rounded.
    """

    expand: Factor = 4.0

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        hidden = round(self.expand * self.d_model)
        expect(hidden >= 1, "expand", self.expand, "at least 1 hidden channel")
        previous, state = context.run(ops.token_shift, x, initial_state=state)
        mix = self.initial_mix()
        k = jnp.square(jax.nn.relu(self.blended("key", mix, x, previous, (hidden,), ("mlp",))))
        r = self.blended("receptance", mix, x, previous, (self.d_model,), (None,))
        return jax.nn.sigmoid(r) * self.to_output("mlp", name="out")(k), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        return ops.init_token_shift_state(batch_size, self.d_model, dtype)

    def state_size(self, length: int) -> int:
        """Return d: the last token."""
        return self.d_model
