"""Filters of long convolutions: one parameter per tap and channel, or MLPs over the position.

    explicit:  h ~ N(0, 1)                                            (Zoology's code)
    implicit:  h_t = W2 relu(W1 z_t)                                  (Zoology's code)
    sine:      h_t = exp(-t' |delta|) W_n sin(w ... sin(w W_1 z_t))   (Hyena, section 3.3)

    z_t = [t', cos(f_b w_t), -sin(f_b w_t) for each band b],   t' = t / (l_max - 1),   w_t = 2 pi t / l_max

All return (taps, channels), tap 0 first, for the first `taps` of `l_max` positions.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Layers, Length, Positive, Repeats, Size
from based_jax.mixers.contract import Context, Mixer, Projection
from based_jax.mixers.initializers import named, normal
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


def taps_needed(l_max: int, length: int, state: ops.LongConvState | None) -> int:
    """Return the number of taps that a call of `length` tokens can use; the rest need not be computed.

    A single token has one more, by which `ops.long_conv` finds a state that holds too few inputs.
    """
    return min(l_max, length if state is None else max(length, 2) + state.inputs.shape[1])


def slots_needed(l_max: int, max_length: int | None) -> int:
    """Return the number of inputs that a state holds."""
    return l_max if max_length is None else min(max_length, l_max)


class LongFilters(Mixer):
    """Base class of BaseConv and LongConv: a filter of `l_max` taps per channel.

    Attributes:
        l_max: taps of a long convolution; older inputs have no effect.
        implicit: compute the long filter by an MLP over the position instead of learning each tap.
        emb_dim, filter_order: features of a position, and hidden units of the MLP.
        sine_frequency: None for Zoology's MLP; a number for Hyena's filter with sines of this initial
            frequency. The papers' language models have 14, with filter_order 64 and slow_decay 1.2.
        num_inner_mlps: inner layers of Hyena's filter.
        fast_decay, slow_decay: shares of l_max after which the fixed decay of Hyena's filter is 0.01, for the
            last and the first channel.
        implementation: passed to `ops.long_conv`.
    """

    l_max: Length = 1024
    implicit: bool = True
    emb_dim: Repeats = 3
    filter_order: Size = 16
    sine_frequency: Positive | None = None
    num_inner_mlps: Layers = 2
    fast_decay: Positive = 0.3
    slow_decay: Positive = 1.5
    implementation: str | None = None

    @nn.nowrap
    def convolve(
        self, x: Float[Array, "B N D"], state: State, context: Context
    ) -> tuple[Float[Array, "B N D"], State]:
        """Return h * x + x and the next state."""
        options = {"initial_state": state, "implementation": self.implementation}
        taps = self._taps(taps_needed(self.l_max, x.shape[1], state))
        y, state = context.run(ops.long_conv, x, taps, **options)
        return y + x, state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        slots = slots_needed(self.l_max, max_length)
        return ops.init_long_conv_state(batch_size, slots, self.d_model, dtype)

    def state_size(self, length: int) -> int:
        """Return d N (Zoology's code), with N at most l_max."""
        return self.d_model * min(length, self.l_max)

    @nn.nowrap
    def _taps(self, count: int) -> Float[Array, "T E"]:
        sizes = self.d_model, self.l_max
        options: dict[str, Any] = {"dtype": self.wide, "name": "filter"}
        if not self.implicit:
            frequency = self.sine_frequency
            expect(frequency is None, "sine_frequency", frequency, "None for an explicit filter")
            return ExplicitFilter(*sizes, **options)(count)
        options |= {"emb_dim": self.emb_dim, "init_std": self.init_std}
        if self.sine_frequency is None:
            return MLPFilter(*sizes, hidden=self.filter_order, **options)(count)
        names = ("filter_order", "num_inner_mlps", "sine_frequency", "fast_decay", "slow_decay")
        return SineFilter(*sizes, **options, **{name: getattr(self, name) for name in names})(count)


def position_features(l_max: int, emb_dim: int) -> np.ndarray:
    """Return z: (l_max, emb_dim), with (emb_dim - 1) / 2 bands; `emb_dim` must be odd."""
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
        init = named(normal(1.0), None, "embed")
        return self.param("taps", init, (self.l_max, self.channels))[:taps].astype(self.dtype)


class MLPFilter(nn.Module):
    """An MLP with one hidden layer; its position table is not trained, as in the authors' code."""

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
    """Hyena's filter: an MLP with one learned frequency per unit, and a decay; see the options of `Hyena`."""

    channels: int
    l_max: int
    emb_dim: int = 3
    filter_order: int = 64
    num_inner_mlps: int = 2
    sine_frequency: float = 1.0
    fast_decay: float = 0.3
    slow_decay: float = 1.5
    learned_positions: bool = True
    dtype: Any = jnp.float32
    init_std: float = 0.02

    @nn.compact
    def __call__(self, taps: int) -> Float[Array, "T E"]:
        options: dict[str, Any] = {"dtype": self.dtype, "init_std": self.init_std}
        hidden = _positions(self, self.l_max, self.emb_dim)[:taps]
        if not self.learned_positions:
            hidden = jax.lax.stop_gradient(hidden)
        init = nn.initializers.constant(self.sine_frequency)
        frequency = self.param("frequency", named(init, None), (self.filter_order,)).astype(self.dtype)
        for layer in range(self.num_inner_mlps + 1):
            name = "in_proj" if layer == 0 else f"inner_{layer - 1}"
            project = Projection((self.filter_order,), (None, None), bias=True, name=name, **options)
            # In TF32, a GPU's default, phases are off by 5e-4, which every sine multiplies by its frequency.
            with jax.default_matmul_precision("highest"):
                hidden = project(hidden)
            hidden = jnp.sin(frequency * hidden)
        h = Projection((self.channels,), (None, "embed"), name="out", **options)(hidden)
        slow, fast = -math.log(0.01) / self.slow_decay, -math.log(0.01) / self.fast_decay
        rates = np.linspace(slow, fast, self.channels)
        time = np.linspace(0, 1, self.l_max)[:taps, None]
        return h * jnp.exp(-jnp.asarray(time, self.dtype) * jnp.asarray(np.abs(rates), self.dtype))


def _positions(module: nn.Module, l_max: int, emb_dim: int) -> Float[Array, "L F"]:
    """Return the table z as a parameter, named an embedding so that weight decay skips it."""

    def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jnp.asarray(position_features(*shape), dtype)

    return module.param("embedding", named(init, None, None), (l_max, emb_dim))
