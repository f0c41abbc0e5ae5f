"""Base classes of RWKV's layers: maps of a blend of two neighbouring tokens, and a matrix state per head.

RWKV-4 and RWKV-5 map (mu x + (1 - mu) x~) W,   x~ = the previous token,   mu per channel, initialised by the
layer's depth. RWKV-5 and RWKV-7 have the matrix state.
"""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Count, Size
from based_jax.mixers.contract import Mixer, default_heads
from based_jax.mixers.initializers import Initializer, named
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_divisible


class RWKVMemoryState(NamedTuple):
    """The last token, and the matrix of each head."""

    shift: ops.ShortConvState
    memory: ops.LinearRecurrenceState


class RWKVMemory(Mixer):
    """Heads with a matrix state; the option for their width is called `head_option`."""

    head_option: ClassVar[str]

    @nn.nowrap
    def layout(self) -> tuple[int, int]:
        """Return the heads, and channels per head."""
        size: int = getattr(self, self.head_option) or self.d_model // default_heads(self.d_model)
        expect_divisible("d_model", self.d_model, self.head_option, size)
        return self.d_model // size, size

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, size = self.layout()
        return RWKVMemoryState(
            shift=ops.init_token_shift_state(batch_size, self.d_model, dtype),
            memory=ops.init_linear_recurrence_state(batch_size, heads, size, size, self.wide),
        )

    def state_size(self, length: int) -> int:
        """Return D d_h, as Zoology's code counts RWKV-7; the last token is not counted."""
        return self.d_model * self.layout()[1]


class RWKVLayer(Mixer):
    """A mixer of an RWKV model.

    Attributes:
        layer: index of this layer among layers of the same type, from 0; initial values depend on it.
        num_layers: number of layers of this type in the model.
    """

    layer: Count = 0
    num_layers: Size = 12

    @nn.nowrap
    def depth(self) -> float:
        """Depth of the layer, from 0 for the first to 1 for the last."""
        return self.layer / max(self.num_layers - 1, 1)

    @nn.nowrap
    def initial_mix(self) -> np.ndarray:
        """Return mu of keys (D,): it grows with the channel's index and, in all channels, with depth."""
        expect(self.layer < self.num_layers, "layer", self.layer, f"0 to {self.num_layers - 1}")
        return (np.arange(self.d_model) / self.d_model) ** (1 - self.layer / self.num_layers)

    @nn.nowrap
    def blended(
        self,
        name: str,
        initial: np.ndarray,
        x: Float[Array, "B N D"],
        previous: Float[Array, "B N D"],
        features: tuple[int, ...],
        axes: tuple[str | None, ...],
    ) -> Array:
        """Map a blend of both tokens; the parameter mu is named by the first letter of `name`."""
        mu = self.param(f"mix_{name[0]}", constant(initial, "embed"), (self.d_model,)).astype(self.wide)
        return self.linear(features, "embed", *axes, name=name)(x * mu + previous * (1 - mu))


def constant(values: np.ndarray, *axes: str) -> Initializer:
    """Return an initializer that sets these values, in the parameter's shape."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jnp.asarray(values.reshape(shape), dtype)

    return named(initializer, *axes)
