"""Arrays on the device, and parameters of modules, without compiling a program for them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def array(x: Any, dtype: Any = None) -> jax.Array:
    """Return `jnp.asarray(x)` without compiling a copy for every new shape and dtype."""
    return jax.device_put(np.asarray(x, dtype))


def normals(init: Callable[..., Any], *inputs: Any, scale: float = 0.3, dtype: Any = None) -> Any:
    """Return the tree of a module's `init`, with values drawn from a normal distribution.

    Compiling `init` takes seconds, most of them for its random numbers; this takes none.

    Args:
        inputs: of the module, arrays or their shapes.
        scale: standard deviation of all parameters; 0.3 is far from most initial values.
        dtype: of all parameters; None keeps the module's.
    """
    generator = np.random.default_rng(7)
    shapes = jax.eval_shape(init, jax.random.key(0), *inputs)
    return jax.tree.map(
        lambda leaf: array(generator.normal(size=leaf.shape) * scale, dtype or leaf.dtype), shapes
    )
