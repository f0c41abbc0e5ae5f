"""Comparison of arrays by the error relative to their largest magnitude."""

from typing import Any

import chex
import jax
import numpy as np


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
