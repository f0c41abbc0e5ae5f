"""What RWKV-4 and RWKV-5 share: maps of a blend of two neighbouring tokens, initialised by the layer's depth.

(mu x + (1 - mu) x~) W,   x~ = the previous token,   mu per channel
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax.fields import Count, Size
from based_jax.mixers.contract import Initializer, Mixer, Projection, named
from based_jax.typing import Array, Float
from based_jax.validate import expect


class RWKVLayer(Mixer):
    """A mixer of an RWKV model.

    Attributes:
        layer: this layer's number among those of its kind, from 0, which initial values depend on.
        num_layers: how many of its kind the model has.
    """

    layer: Count = 0
    num_layers: Size = 12

    @nn.nowrap
    def depth(self) -> float:
        """0 for the first layer to 1 for the last."""
        layer, layers = self._place()
        return layer / max(layers - 1, 1)

    @nn.nowrap
    def initial_mix(self) -> np.ndarray:
        """(D,) mu of keys: later channels keep more of the current token, in later layers all do."""
        layer, layers = self._place()
        return (np.arange(self.d_model) / self.d_model) ** (1 - layer / layers)

    @nn.nowrap
    def _place(self) -> tuple[int, int]:
        expect(0 <= self.layer < self.num_layers, "layer", self.layer, f"0 to {self.num_layers - 1}")
        return self.layer, self.num_layers

    def blended(
        self,
        name: str,
        initial: np.ndarray,
        x: Float[Array, "B N D"],
        previous: Float[Array, "B N D"],
        features: tuple[int, ...],
        axes: tuple[str | None, ...],
    ) -> Array:
        """A map of the blend of both tokens, with mu called after the first letter of its name."""
        mu = self.param(f"mix_{name[0]}", constant(initial, "embed"), (self.d_model,)).astype(self.dtype)
        project = Projection(features, ("embed", *axes), dtype=self.dtype, init_std=self.init_std, name=name)
        return project(x * mu + previous * (1 - mu))


def constant(values: np.ndarray, *axes: str) -> Initializer:
    """An initializer that gives these values, in the parameter's shape."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jnp.asarray(values.reshape(shape), dtype)

    return named(initializer, *axes)
