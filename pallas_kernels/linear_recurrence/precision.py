"""Products with float32's digits, and what is computed by them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.launch import dot


def precise(a: jax.Array, b: jax.Array, contract: tuple[int, int] = (1, 0), into: Any = None) -> jax.Array:
    """Return a product with float32's digits."""
    return dot(a, b, contract, into, "highest")


def selected_sums(ones: jax.Array, x: jax.Array, contract: tuple[int, int] = (1, 0)) -> jax.Array:
    """Return a product of ones and zeros with `x`, with float32's digits.

    TF32 holds 11 bits of a number, so two products are enough: of the first 11 bits of x and of the others.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-(2**13))
    first = lax.bitcast_convert_type(bits, jnp.float32)
    return dot(ones, x - first, contract, dot(ones, first, contract))


def inverse(lower: jax.Array, differing: jax.Array) -> jax.Array:
    """Return (1 + A)^-1 from the inverses of blocks on the diagonal, whose size doubles.

    [[P, 0], [Q, R]]^-1 = [[P^-1, 0], [-R^-1 Q P^-1, R^-1]]. Two indices are in one block of a power of two if
    the bits in which they differ, `differing`, make a smaller number.
    """
    found, size = jnp.where(differing == 0, 1.0, jnp.where(differing == 1, -lower, 0)), 2
    while size < len(lower):
        below = jnp.where((differing >= size) & (differing < 2 * size), lower, 0)
        found -= precise(precise(found, below), found)
        size *= 2
    return found
