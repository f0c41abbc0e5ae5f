"""Arrays, their trees and JAX's loops with the static types that its annotations lose; dtypes of sums."""

from collections.abc import Callable
from typing import Any, TypeVar
from typing import cast as typed

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.typing import Array

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
X = TypeVar("X")
Y = TypeVar("Y")


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


@jax.vmap
def set_rows(x: Array, index: Array, values: Array) -> Array:
    """Write values (B, N, ...) to x (B, M, ...) at each row's indices (B, N); those out of range are dropped.

    By `vmap`, from which the compiler sees that rows are independent: indices of rows would gather x where
    the batch is sharded.
    """
    return x.at[index].set(values, mode="drop")


def wide(integers: Array) -> Array:
    """Return integers of at least 32 bits: a number beyond an array's dtype wraps around beside it."""
    return integers.astype(jnp.int32) if integers.dtype.itemsize < 4 else integers


def accumulation_dtype(x: Any) -> Any:
    """Return the dtype of sums over x: float64 for float64 (references), else float32."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def kernel_precision() -> str | None:
    """Return the precision of a kernel's products: "highest", or None if JAX's default for a GPU is kept."""
    config: Any = jax.config
    return "highest" if config.jax_default_matmul_precision in ("highest", "float32") else None


def finfo(dtype: Any) -> Any:
    """Return `jnp.finfo`, whose type is partly unknown."""
    return typed(Any, jnp.finfo(dtype))


def checkpoint(function: F, *, prevent_cse: bool = True) -> F:
    """Apply `jax.checkpoint`."""
    return typed(F, jax.checkpoint(function, prevent_cse=prevent_cse))


def with_gradient(
    forward: Callable[..., Any], backward: Callable[..., Any], nondiff_argnums: tuple[int, ...] = ()
) -> Callable[[F], F]:
    """Decorate a function with a custom gradient: `jax.custom_vjp` and both of its rules."""

    def decorate(function: F) -> F:
        differentiable = typed(Any, jax.custom_vjp(function, nondiff_argnums=nondiff_argnums))
        differentiable.defvjp(forward, backward)
        return differentiable

    return decorate


def map_rows(function: Callable[[X], Y], rows: X) -> Y:
    """Apply `lax.map`: one row after another along the first axis."""
    return typed(Y, lax.map(function, rows))


def cond(condition: Array, yes: Callable[[], Y], no: Callable[[], Y]) -> Y:
    """Apply `lax.cond`."""
    return typed(Y, lax.cond(condition, yes, no))


def repeat(count: int, step: Callable[[Array, Y], Y], first: Y) -> Y:
    """Apply `lax.fori_loop` from 0."""
    return typed(Y, lax.fori_loop(0, count, step, first))
