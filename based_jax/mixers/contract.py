"""The one contract of every sequence mixer, and the linear map that mixers are made of.

    y, state = mixer(x, state=None, *, segment_ids=None, positions=None, mask=None)
    state = mixer.init_state(batch_size, max_length=None, dtype=None)

That one call is training (state None), prefill, chunked prefill and decoding (length 1).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import compat
from based_jax.fields import AtLeastZero, Dtype, Size
from based_jax.mixers.frame import framed
from based_jax.mixers.module import Module
from based_jax.mixers.option_docs import with_inherited
from based_jax.ops.eager import compiled
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect, expect_array, expect_divisible

Initializer = Callable[..., Any]


@dataclass(frozen=True)
class Card:
    """A mixer's row in docs/mixers.md. Costs are per sequence and layer, without the projections' N D^2.

    Letters: N tokens, D d_model, H heads, d_h channels of a head (d_k of keys, d_v of values), E inner
    channels, S states per channel, F features, C tokens of a chunk, w window, k taps, p channels per H3 head.
    """

    equation: str = ""
    """in one line"""
    training: str = ""
    """order of the multiplications"""
    state: str = ""
    """floats kept between steps, as `state_size` counts"""
    decoding: str = ""
    """order of the multiplications of one step"""
    source: str = ""
    """paper and section"""
    parity: tuple[str, ...] = ()
    """cases in tests/fixtures; without any, the tests compare with the equations"""


class Mixer(Module):
    """Base of all sequence mixers; subclasses add their options as fields.

    Attributes:
        d_model: width of the input and output.
        dtype: dtype of the computation; parameters are float32.
        init_std: standard deviation of the projections' normal initialisation (Based's code: 0.02).
        out_init_std: the same for the output projection; None takes `init_std`.
    """

    d_model: Size
    dtype: Dtype = jnp.float32
    init_std: AtLeastZero = 0.02
    out_init_std: AtLeastZero | None = None

    causal: ClassVar[bool] = True
    """outputs do not depend on later inputs; where a mixer has an option of this name, its default"""
    stateful: ClassVar[bool] = True
    """can continue from a state"""
    packing: ClassVar[bool] = True
    """honours segment_ids"""
    is_pure: ClassVar[bool] = True
    """a function of parameters and inputs alone: no noise in training, no loss of its own"""
    wants_tokens: ClassVar[bool] = False
    """takes the ids of its tokens as a further argument, `tokens`; a language model passes them"""
    card: ClassVar[Card] = Card()
    """its row in docs/mixers.md"""

    def __init_subclass__(cls, **options: Any) -> None:
        if "__call__" in cls.__dict__:
            cls.__call__ = framed(cls.__call__)
        super().__init_subclass__(**options)
        cls.__doc__ = with_inherited(cls)  # for help()

    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        """Mix tokens along the length.

        Args:
            x: inputs.
            state: None for a plain parallel pass; else continue from it.
            segment_ids: documents packed into one row; tokens see their own document only.
            positions: for rotary embeddings; default: counted from the start of each segment.
            mask: True for real tokens, right padding only. Padding changes neither the outputs of real
                tokens nor the state.

        Returns:
            y: (B, N, D) in `dtype`, and the state behind the last real token (None if `state` was None).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    @nn.nowrap
    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """One compiled program outside `jit`; what asks for methods or sees their calls has none."""
        is_plain = "method" in kwargs or "capture_intermediates" in kwargs or compat.is_intercepted()
        return super()._apply(*args, **kwargs) if is_plain else _apply(self, *args, **kwargs)

    @nn.nowrap
    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        """The state before the first token; needs no parameters.

        Args:
            batch_size: rows.
            max_length: tokens that a row will ever have; only mixers whose state grows need it.
            dtype: of cached activations; default the computation's. Running sums are float32 regardless.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define init_state")

    @nn.nowrap
    def state_size(self, length: int) -> int:
        """Floats kept per sequence between steps after `length` tokens, by the papers' formulas."""
        raise NotImplementedError(f"{type(self).__name__} does not define state_size")

    @nn.nowrap
    def check_input(self, x: Array) -> Array:
        """Validate x and cast it to the computation's dtype."""
        expect_array("x", x, ("B", "N", self.d_model), "floating")
        return jnp.asarray(x, self.dtype)


@compiled
def _apply(mixer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return nn.Module.apply(mixer, *args, **kwargs)


class Projection(nn.Module):
    """A linear map over the last axes, whose kernel keeps its axes apart so that each can be sharded.

    Attributes:
        features: sizes of the new axes.
        axes: logical names of the kernel's axes, inputs first.
        bias: add a bias (initialised to zero).
        inputs: how many trailing axes of the input are contracted.
    """

    features: tuple[int, ...]
    axes: tuple[str | None, ...]
    bias: bool = False
    inputs: int = 1
    dtype: Any = jnp.float32
    init_std: float = 0.02

    @nn.compact
    def __call__(self, x: Array) -> Array:
        lead, contracted = x.shape[: -self.inputs], x.shape[-self.inputs :]
        shape = (*contracted, *self.features)
        kernel = self.param("kernel", named(nn.initializers.normal(self.init_std), *self.axes), shape)
        fan_in = math.prod(contracted)
        y = x.reshape(*lead, fan_in).astype(self.dtype) @ kernel.reshape(fan_in, -1).astype(self.dtype)
        y = y.reshape(*lead, *self.features)
        if self.bias:
            names = self.axes[self.inputs :]
            bias = self.param("bias", named(nn.initializers.zeros_init(), *names), self.features)
            y = y + bias.astype(self.dtype)
        return y


def named(initializer: Initializer, *axes: str | None) -> Initializer:
    """An initializer whose parameter carries logical axis names (see train/sharding.py)."""
    return nn.with_logical_partitioning(initializer, axes)


def default_heads(d_model: int) -> int:
    """Heads of about 64 channels: the largest number up to d_model / 64 that divides d_model."""
    return next(heads for heads in range(max(d_model // 64, 1), 0, -1) if d_model % heads == 0)


def head_layout(d_model: int, num_heads: int | None, num_kv_heads: int | None = None) -> tuple[int, int, int]:
    """Resolve (heads, key/value heads, channels per head) and check that they divide."""
    expect(d_model >= 1, "d_model", d_model, "at least 1")
    heads = default_heads(d_model) if num_heads is None else num_heads
    expect_divisible("d_model", d_model, "num_heads", heads)
    kv_heads = heads if num_kv_heads is None else num_kv_heads
    expect_divisible("num_heads", heads, "num_kv_heads", kv_heads)
    return heads, kv_heads, d_model // heads


def uniform(bound: float) -> Initializer:
    """U(-bound, bound), torch's default for convolutions with bound = fan_in^(-1/2)."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initializer


def log_uniform_steps(low: float = 1e-3, high: float = 0.1, floor: float = 1e-4) -> Initializer:
    """Biases with a log-uniform softplus from `low` to `high`, at least `floor`: Mamba's step sizes."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        steps = jnp.exp(jax.random.uniform(key, shape, dtype, math.log(low), math.log(high)))
        steps = jnp.maximum(steps, floor)
        return steps + jnp.log(-jnp.expm1(-steps))

    return initializer
