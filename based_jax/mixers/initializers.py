"""Initializers of parameters that carry logical axis names, in Flax linen and in NNX.

`draw_together` makes one draw for all parameters of a layer: XLA compiles a generator for each array that is
drawn. For those of `based-tiny` that takes 11 s of processor time on a CPU, and 2 s if those of each kind of
layer are cut from one vector.
"""

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from based_jax.compat import current_trace
from based_jax.typing import Array, Float

Initializer = Callable[..., Any]


@struct.dataclass
class NamedAxes(nn.LogicallyPartitioned):  # pyright: ignore[reportMissingTypeArgument]
    """Linen's box of logical axis names, usable in NNX without a mesh.

    An `nnx.Variable` with axis names is put on a mesh when it is created, and raises if there is none. This
    one is put on a mesh only within `nn.logical_axis_rules`, where the names have a meaning.
    """

    def to_nnx_metadata(self) -> dict[str, Any]:
        """Return the metadata that `nnx.bridge.ToNNX` passes to the variable."""
        metadata: dict[str, Any] = dict(vars(self))
        metadata |= {"out_sharding": metadata.pop("names"), "sharding_rules": metadata.pop("rules")}
        is_placed = bool(nn.get_logical_axis_rules() or self.rules)
        return metadata if is_placed else metadata | {"eager_sharding": False}


def named(initializer: Initializer, *axes: str | None) -> Initializer:
    """Return an initializer whose parameter carries logical axis names (see `based_jax.training.devices`)."""

    def boxed(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> NamedAxes:
        return NamedAxes(initializer(key, shape, dtype), axes)

    return boxed


def ones(*axes: str | None) -> Initializer:
    """Return an initializer of ones with logical axis names."""
    return named(nn.initializers.ones_init(), *axes)


def zeros(*axes: str | None) -> Initializer:
    """Return an initializer of zeros with logical axis names."""
    return named(nn.initializers.zeros_init(), *axes)


@dataclass
class _Vector:
    """Values from N(0, 1) to cut arrays from; None only counts them.

    They are for what the trace that makes them draws itself. The same program may be drawn in another trace
    (`nn.jit`, `nn.scan`, `nn.remat`) or several times (`nn.vmap`).
    """

    values: Float[Array, " size"] | None
    used: int = 0
    trace: Any = field(default_factory=current_trace)

    def cut(self, shape: tuple[int, ...]) -> Array:
        begin, self.used = self.used, self.used + math.prod(shape)
        if self.values is None:
            return jnp.zeros(shape, jnp.float32)
        return self.values[begin : self.used].reshape(shape)


_vector: ContextVar[_Vector | None] = ContextVar("vector", default=None)
_ONLY_SHAPES: Any = jax.make_user_context(False)
"""part of the key of `jit`'s cache of traced programs"""


def normal(stddev: float) -> Initializer:
    """Return the initializer N(0, stddev^2)."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        vector = _vector.get()
        is_float32 = jax.dtypes.canonicalize_dtype(dtype) == jnp.float32
        if vector is None or not is_float32 or vector.trace is not current_trace():
            return stddev * jax.random.normal(key, shape, dtype)
        return stddev * vector.cut(shape)

    return initializer


def uniform(bound: float) -> Initializer:
    """Return the initializer U(-bound, bound); torch's default for convolutions has bound = fan_in^(-1/2)."""
    return _of_uniform(-bound, bound)


def log_uniform(low: float, high: float) -> Initializer:
    """Return the initializer U(log(low), log(high)), of logarithms."""
    return _of_uniform(math.log(low), math.log(high))


def log_of_uniform(low: float, high: float) -> Initializer:
    """Return an initializer of the logarithms of U(low, high)."""
    return _of_uniform(low, high, jnp.log)


def _of_uniform(low: float, high: float, function: Callable[[Array], Array] | None = None) -> Initializer:
    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        drawn = jax.random.uniform(key, shape, dtype, low, high)
        return drawn if function is None else function(drawn)

    return initializer


def frequencies(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return pi n for the n-th mode (S4D-Lin)."""
    return jnp.broadcast_to(jnp.asarray(np.pi * np.arange(shape[-1]), dtype), shape)


def complex_ones(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return 1 + 0i."""
    return jnp.broadcast_to(jnp.asarray([1, 0], dtype), shape)


def draw_together(init: Callable[[Array], Any], key: Array) -> Any:
    """Return init(key), with the float32 values of `normal` cut from one vector."""
    if _ONLY_SHAPES.value:
        return init(key)
    sizes: list[int] = []

    def run(key: Array, values: Array | None) -> Any:
        vector = _Vector(values)
        token = _vector.set(vector)
        try:
            return init(key)
        finally:
            _vector.reset(token)
            sizes.append(vector.used)

    jax.eval_shape(run, key, None)
    own, rest = jax.random.split(key)
    return run(rest, jax.random.normal(own, (sizes[0],), jnp.float32))


def initial_shapes(init: Callable[..., Any], *args: Any) -> Any:
    """Return `jax.eval_shape(init, *args)` in half the time, as `draw_together` runs each layer once."""
    with _ONLY_SHAPES(True):
        return jax.eval_shape(init, *args)


def log_uniform_steps(low: float = 1e-3, high: float = 0.1, floor: float = 1e-4) -> Initializer:
    """Return an initializer of biases with a log-uniform softplus, at least `floor`: Mamba's step sizes."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        steps = jnp.maximum(jnp.exp(log_uniform(low, high)(key, shape, dtype)), floor)
        return steps + jnp.log(-jnp.expm1(-steps))

    return initializer
