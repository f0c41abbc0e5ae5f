"""Random values by counter, as one elementwise program: Threefry-2x32 with 20 rounds (Salmon et al. 2011).

jax's own Threefry is a loop on CPUs that keeps both words of every block in memory. Here nothing is kept, and
XLA splits the program over all cores.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.typing import Array, Float, Int

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def uniform_values(words: Int[Array, "2"], high: Any, low: Any) -> Float[Array, "*shape"]:
    """Return the draws with these counters from U(-1, 1), without -1, of 23 bits.

    Args:
        words: the key.
        high: high word of all counters, a scalar.
        low: low words, an array uint32 of the shape of the result.
    """
    bits = threefry(words, high, low)
    one_to_two = lax.bitcast_convert_type((bits >> 9) | np.float32(1).view(np.uint32), jnp.float32)
    return jnp.maximum(2 * one_to_two - 3, np.nextafter(np.float32(-1), np.float32(0)))


def normal_values(words: Int[Array, "2"], high: Any, low: Any) -> Float[Array, "*shape"]:
    """Return the draws with these counters from N(0, 1), by the inverse of its distribution function."""
    return math.sqrt(2) * lax.erf_inv(uniform_values(words, high, low))


def threefry(words: Int[Array, "2"], high: Any, low: Any) -> Int[Array, "*shape"]:
    """Return the first word of the blocks with these counters."""
    keys = words[0], words[1], words[0] ^ words[1] ^ _PARITY
    left, right = jnp.uint32(high) + keys[0], low + keys[1]
    for group in range(5):
        for shift in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(shift)) | (right >> np.uint32(32 - shift)))
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + np.uint32(group + 1)
    return left
