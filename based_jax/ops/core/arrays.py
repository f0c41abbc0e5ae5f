"""Helpers for arrays and pytrees of arrays that preserve their static types, and dtypes of sums."""

from collections.abc import Callable
from typing import Any, TypeVar
from typing import cast as typed

import jax
import jax.numpy as jnp

from based_jax.typing import Array

T = TypeVar("T")


def lift(x: Array, like: Array) -> Array:
    """Return x with axes of size 1 after its own, as many as another array has."""
    return x.reshape(*x.shape, *[1] * (like.ndim - x.ndim))


def map_arrays(function: Callable[[Array], Any], tree: T) -> T:
    """Apply `jax.tree.map` to one tree."""
    return jax.tree.map(function, tree)


def map_pairs(function: Callable[[Array, Array], Array], first: Any, second: T) -> T:
    """Apply `jax.tree.map` to two trees."""
    return jax.tree.map(function, first, second)


def append(earlier: Any, later: T) -> T:
    """Concatenate the arrays of two trees along axis 1, in the dtypes of the later tree."""
    return map_pairs(lambda x, y: jnp.concatenate([x.astype(y.dtype), y], axis=1), earlier, later)


def cast(tree: T, dtype: Any) -> T:
    """Return the arrays in another dtype."""
    return map_arrays(lambda x: x.astype(dtype), tree)


def select(condition: Array, yes: Any, no: T) -> T:
    """Return `jnp.where` of each pair of arrays."""
    return map_pairs(lambda yes, no: jnp.where(condition, yes, no), yes, no)


def accumulation_dtype(x: Any) -> Any:
    """Return the dtype of sums over x: float64 for float64 (references), else float32."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def finfo(dtype: Any) -> Any:
    """Return `jnp.finfo`, whose type is partly unknown."""
    return typed(Any, jnp.finfo(dtype))
