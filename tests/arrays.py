"""Arrays on the device without a program of their own."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from based_jax import ops
from based_jax.testing.arrays import array, normals

__all__ = ["array", "blank", "normals", "ones", "stream_at", "zeros"]


def ones(shape: Any, dtype: Any = np.float32) -> jax.Array:
    """As `jnp.ones`, which compiles a program for every shape."""
    return array(np.ones(shape, dtype))


def zeros(shape: Any, dtype: Any = np.float32) -> jax.Array:
    """As `jnp.zeros`, which compiles a program for every shape."""
    return array(np.zeros(shape, dtype))


def blank(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return zeros instead of every array that `make` returns: most initial states, without its programs."""
    shapes = jax.eval_shape(lambda: make(*arguments, **options))
    return jax.tree.map(lambda leaf: array(np.zeros(leaf.shape, leaf.dtype)), shapes)


def stream_at(length: Any, start: Any, segment: Any) -> ops.Stream:
    """Rows that have come so far, and met numbers only."""
    return ops.Stream(length, start, segment, np.zeros(np.shape(length), bool))
