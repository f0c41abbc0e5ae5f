"""The filters of long convolutions: one number per tap and channel, or MLPs over the position.

    explicit:  h ~ N(0, 1)                                            (Zoology's code)
    implicit:  h_t = W2 relu(W1 z_t)                                  (Zoology's code)
    sine:      h_t = exp(-t' |delta|) W_n sin(w ... sin(w W_1 z_t))   (Hyena, section 3.3)

    z_t = [t', cos(f_b w_t), -sin(f_b w_t) for each band b],   t' = t / (l_max - 1),   w_t = 2 pi t / l_max

All return (taps, channels), tap 0 first, for the first `taps` of `l_max` positions.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.mixers.context import Context
from based_jax.mixers.contract import Projection, named
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


def taps_needed(l_max: int, length: int, state: ops.LongConvState | None) -> int:
    """Taps that a call of `length` tokens can use: the rest need not be computed."""
    return min(l_max, length + (0 if state is None else state.inputs.shape[1]))


def convolve(
    mixer: Any, x: Float[Array, "B N D"], state: State, context: Context
) -> tuple[Float[Array, "B N D"], State]:
    """h * x + x by a mixer's filter h of `l_max` taps, learned as it is or, if `implicit`, made by an MLP."""
    make = functools.partial(MLPFilter, init_std=mixer.init_std) if mixer.implicit else ExplicitFilter
    h = make(mixer.d_model, mixer.l_max, dtype=mixer.wide, name="filter")
    taps = h(taps_needed(mixer.l_max, x.shape[1], state))
    options = {"initial_state": state, "implementation": mixer.implementation}
    y, state = context.run(ops.long_conv, x, taps, **options)
    return y + x, state


def position_features(l_max: int, emb_dim: int) -> np.ndarray:
    """z: (l_max, emb_dim), for an odd `emb_dim` with (emb_dim - 1) / 2 bands."""
    expect(emb_dim >= 1 and emb_dim % 2 == 1, "emb_dim", emb_dim, "an odd number, time and pairs of waves")
    bands = (emb_dim - 1) // 2
    frequency = np.linspace(1e-4, bands - 1, bands)
    angle = frequency * (2 * math.pi * np.arange(l_max) / l_max)[:, None]
    return np.concatenate([np.linspace(0, 1, l_max)[:, None], np.cos(angle), -np.sin(angle)], axis=1)


class ExplicitFilter(nn.Module):
    """A parameter per tap."""

    channels: int
    l_max: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, taps: int) -> Float[Array, "T E"]:
        init = named(nn.initializers.normal(1.0), None, "embed")
        return self.param("taps", init, (self.l_max, self.channels))[:taps].astype(self.dtype)


class MLPFilter(nn.Module):
    """An MLP with one hidden layer; its table of positions stays as it is, as in the authors' code."""

    channels: int
    l_max: int
    emb_dim: int = 3
    hidden: int = 16
    dtype: Any = jnp.float32
    init_std: float = 0.02

    @nn.compact
    def __call__(self, taps: int) -> Float[Array, "T E"]:
        options: dict[str, Any] = {"bias": True, "dtype": self.dtype, "init_std": self.init_std}
        z = jax.lax.stop_gradient(_positions(self, self.l_max, self.emb_dim))[:taps]
        hidden = jax.nn.relu(Projection((self.hidden,), (None, None), name="in_proj", **options)(z))
        return Projection((self.channels,), (None, "embed"), name="out", **options)(hidden)


class SineFilter(nn.Module):
    """Hyena's filter: an MLP with learned positions and one learned frequency per unit, and a fixed decay.

    Attributes:
        order: hidden units.
        inner_layers: hidden layers after the first.
        sine_frequency: initial frequency, 1 in Zoology's code and 14 in the papers' language models.
        fast, slow: the decay reaches 0.01 after this share of l_max, for the last and the first channel.
    """

    channels: int
    l_max: int
    emb_dim: int = 3
    order: int = 64
    inner_layers: int = 2
    sine_frequency: float = 1.0
    fast: float = 0.3
    slow: float = 1.5
    dtype: Any = jnp.float32
    init_std: float = 0.02

    @nn.compact
    def __call__(self, taps: int) -> Float[Array, "T E"]:
        options: dict[str, Any] = {"dtype": self.dtype, "init_std": self.init_std}
        hidden = _positions(self, self.l_max, self.emb_dim)[:taps]
        init = nn.initializers.constant(self.sine_frequency)
        frequency = self.param("frequency", named(init, None), (self.order,)).astype(self.dtype)
        for layer in range(self.inner_layers + 1):
            name = "in_proj" if layer == 0 else f"inner_{layer - 1}"
            hidden = Projection((self.order,), (None, None), bias=True, name=name, **options)(hidden)
            hidden = jnp.sin(frequency * hidden)
        h = Projection((self.channels,), (None, "embed"), name="out", **options)(hidden)
        slow, fast = -math.log(0.01) / self.slow, -math.log(0.01) / self.fast
        time = np.linspace(0, 1, self.l_max)[:taps, None]
        return h * jnp.asarray(np.exp(-time * np.linspace(slow, fast, self.channels)), self.dtype)


def _positions(module: nn.Module, l_max: int, emb_dim: int) -> Float[Array, "L F"]:
    """The table z as a parameter; called an embedding, which weight decay leaves alone."""

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jnp.asarray(position_features(*shape), dtype)

    return module.param("embedding", named(init, None, None), (l_max, emb_dim))
