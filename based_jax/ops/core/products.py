"""Products of activations with weights."""

import math

import jax.numpy as jnp

from based_jax.ops.core import dispatch
from based_jax.typing import Array, Float


def product(x: Float[Array, "... K"], weights: Float[Array, "K V"]) -> Float[Array, "... V"]:
    """x @ weights; one row, as in decoding, is multiplied as two on a GPU if its numbers have 16 bits.

    XLA writes a product with a vector as a sum of elementwise products. On a GPU it rounds these to 16 bits
    before it adds them, and often stores them all, three times the traffic of the weights.
    """
    is_row = math.prod(x.shape[:-1]) == 1 and x.dtype.itemsize == 2
    if not is_row or dispatch.platform([x]) != "gpu":
        return x @ weights
    two = jnp.broadcast_to(x.reshape(1, -1), (2, x.shape[-1])) @ weights
    return two[0].reshape(*x.shape[:-1], -1)
