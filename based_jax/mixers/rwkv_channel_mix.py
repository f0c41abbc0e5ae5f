"""RWKV-4's channel mixing (RWKV, section 3.1; spec of Zoology 3.9): the other half of an RWKV block.

    x~ = the previous token;   k = relu((mu_k x + (1 - mu_k) x~) W_k)^2,   r = (mu_r x + (1 - mu_r) x~) W_r
    y = sigmoid(r) * (k W_v)

It takes the place of an MLP but reads the previous token, so it has a state: a mixer, scheduled as a layer of
its own behind a time mixing, in a model with mlp = "none".
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Factor
from based_jax.mixers.contract import Card, Projection
from based_jax.mixers.rwkv_layer import RWKVLayer
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


class RWKVChannelMix(RWKVLayer):
    """RWKV-4 channel mixing: a gated MLP on two neighbouring tokens.

    Attributes:
        expand: hidden width over d_model (3.5 in RWKV-5), rounded.
    """

    card: ClassVar[Card] = Card(
        equation="sigmoid(x_r W_r) * (relu(x_k W_k)^2 W_v), x_i a blend of two tokens",
        training="N D^2",
        state="D",
        decoding="D",
        source="Peng et al. 2023; Zoology's code",
        parity=("zoology/rwkv4_channel_mix",),
    )

    expand: Factor = 4.0

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
        hidden = round(self.expand * self.d_model)
        expect(hidden >= 1, "expand", self.expand, "at least 1 hidden channel")
        previous, new_state = ops.token_shift(
            x, initial_state=state, return_state=True, segment_ids=segment_ids, mask=mask
        )
        mix = self.initial_mix()
        k = jnp.square(jax.nn.relu(self.blended("key", mix, x, previous, (hidden,), ("mlp",))))
        r = self.blended("receptance", mix, x, previous, (self.d_model,), (None,))
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        y = Projection((self.d_model,), ("mlp", "embed"), dtype=self.dtype, init_std=out_std, name="out")(k)
        return jax.nn.sigmoid(r) * y, None if state is None else new_state

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        return ops.init_token_shift_state(batch_size, self.d_model, self.dtype if dtype is None else dtype)

    def state_size(self, length: int) -> int:
        """The last token."""
        return self.d_model
