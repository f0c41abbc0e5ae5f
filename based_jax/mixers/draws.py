"""Initializers from N(0, 1) and U(-1, 1), and one draw for all parameters of a layer.

XLA compiles a generator for each array that is drawn. For those of `based-tiny` that takes 11 s of processor
time on a CPU, and 2 s if those of each kind of layer are cut from one vector.
"""

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.mixers.named_axes import Initializer
from based_jax.typing import Array, Float


@dataclass
class _Vector:
    """Values from N(0, 1) to cut arrays from; None only counts them."""

    values: Float[Array, "size"] | None
    used: int = 0

    def cut(self, shape: tuple[int, ...]) -> Array:
        begin, self.used = self.used, self.used + math.prod(shape)
        if self.values is None:
            return jnp.zeros(shape, jnp.float32)
        return self.values[begin : self.used].reshape(shape)


_vector: ContextVar[_Vector | None] = ContextVar("vector", default=None)


def normal(stddev: float) -> Initializer:
    """Return the initializer N(0, stddev^2)."""

    def initializer(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        vector = _vector.get()
        if vector is None or jax.dtypes.canonicalize_dtype(dtype) != jnp.float32:
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


def draw_together(init: Callable[[Array], Any], key: Array) -> Any:
    """Return init(key), with the float32 values of `normal` cut from one vector."""

    def run(key: Array, vector: _Vector) -> Any:
        token = _vector.set(vector)
        try:
            return init(key)
        finally:
            _vector.reset(token)

    counter = _Vector(None)
    jax.eval_shape(partial(run, vector=counter), key)
    own, rest = jax.random.split(key)
    return run(rest, _Vector(jax.random.normal(own, (counter.used,), jnp.float32)))
