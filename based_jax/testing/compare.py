"""Comparison of arrays by the error relative to their largest magnitude."""

from typing import Any

import jax
import numpy as np


def assert_close(
    actual: Any, expected: Any, tolerance: float, what: str = "", *, magnitude: float = 0.0
) -> None:
    """Assert that two trees of arrays agree within `tolerance`, relative to each array's largest magnitude.

    Shapes must be equal, and `actual` must be finite. Integers and booleans must be equal. Arrays smaller
    than `magnitude` are compared relative to it (gradients that vanish but for rounding); where `expected` is
    zero everywhere, `tolerance` is absolute.
    """
    actual, expected = (jax.tree_util.tree_flatten_with_path(tree) for tree in (actual, expected))
    assert actual[1] == expected[1], f"{what}: tree {actual[1]}, expected {expected[1]}"
    for (path, got), (_, want) in zip(actual[0], expected[0], strict=True):
        name = f"{what}{jax.tree_util.keystr(path)}" or "array"
        got, want = np.asarray(got), np.asarray(want)
        assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
        if want.size == 0:
            continue
        if np.issubdtype(want.dtype, np.integer) or want.dtype == bool:
            assert np.array_equal(got, want), f"{name}: {got.tolist()}, expected {want.tolist()}"
            continue
        got, want = got.astype(np.float64), want.astype(np.float64)
        assert np.isfinite(want).all(), f"{name}: the expected values are not finite"
        assert np.isfinite(got).all(), f"{name}: {np.count_nonzero(~np.isfinite(got))} values are not finite"
        scale = max(np.abs(want).max(), magnitude) or 1.0
        error = np.abs(got - want).max() / scale
        where = np.unravel_index(np.abs(got - want).argmax(), want.shape)
        assert error <= tolerance, (
            f"{name}: error {error:.2e} of the largest magnitude {scale:.3g}, tolerance {tolerance:.0e}; "
            f"at {tuple(map(int, where))} {got[where]:.6g}, expected {want[where]:.6g}"
        )
