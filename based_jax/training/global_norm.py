"""The global norm of gradients, and clipping to it, with one matrix product per array on CPUs."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from based_jax.typing import Array, Float


def global_norm(tree: Any) -> Float[Array, ""]:
    """Return the square root of the sum of all squares.

    On a CPU XLA makes three programs per array of a sum of squares, and stores the squares; a product of the
    array with itself is a call of a library.
    """
    if jax.default_backend() != "cpu":
        return optax.tree.norm(tree)
    return jnp.sqrt(sum(map(_sum_of_squares, jax.tree.leaves(tree)), jnp.zeros(())))


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Return `optax.clip_by_global_norm` with this module's norm."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        norm = global_norm(updates)

        def clipped(update: Array) -> Array:
            return jnp.where(norm < max_norm, update, update / norm.astype(update.dtype) * max_norm)

        return jax.tree.map(clipped, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _sum_of_squares(array: Array) -> Float[Array, ""]:
    axes = tuple(
        range(array.ndim)
    )  # all contracted as they are, so that each device has the sum of its shard
    dtype = jnp.promote_types(array.dtype, jnp.float32)
    return lax.dot_general(array, array, ((axes, axes), ((), ())), preferred_element_type=dtype)
