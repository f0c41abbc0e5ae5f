"""Arrays and parameters of modules without compiling a program for them, and comparison of arrays."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import numpy as np

from based_jax.mixers.initializers import initial_shapes


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
    shapes = initial_shapes(init, jax.random.key(0), *inputs)
    return jax.tree.map(
        lambda leaf: array(generator.normal(size=leaf.shape) * scale, dtype or leaf.dtype), shapes
    )


def assert_close(
    actual: Any, expected: Any, tolerance: float, what: str = "", *, magnitude: float = 0.0
) -> None:
    """Assert that two trees of arrays agree within `tolerance`, relative to each array's largest magnitude.

    Shapes must be equal, and both trees finite. For integers and booleans, and where `expected` is zero
    everywhere, `tolerance` is absolute. Arrays smaller than `magnitude` are compared relative to it
    (gradients that vanish but for rounding).
    """

    def difference(got: np.ndarray, want: np.ndarray) -> str:
        scale = 1.0 if want.dtype.kind in "iub" else np.abs(want).max(initial=magnitude) or 1.0
        errors = np.abs(got.astype(np.float64) - want.astype(np.float64)) / float(scale)
        if (errors <= tolerance).all():
            return ""
        at = tuple(map(int, np.unravel_index(errors.argmax(), want.shape)))
        error = f"error {errors[at]:.2e} of the largest magnitude {float(scale):.3g}"
        return f"{error}, tolerance {tolerance:.0e}; at {at} {got[at]:.6g}, expected {want[at]:.6g}"

    trees = [jax.tree.map(np.asarray, tree) for tree in (actual, expected)]
    chex.assert_trees_all_equal_shapes(*trees, custom_message=what)
    chex.assert_tree_all_finite(trees, custom_message=what)
    chex.assert_trees_all_equal_comparator(
        lambda *leaves: not difference(*leaves), difference, *trees, custom_message=what
    )
