"""The one table of tolerances. They may only tighten.

A tolerance bounds the largest error of an array relative to its largest magnitude (the max norm), so that
elements near zero, which are sums of larger terms that cancel, are not asked for digits that nothing has.
"""

from typing import Any

import jax
import numpy as np

FLOAT64 = 1e-11
"""Two orders of the same float64 sum: some 1e-16 per term, times thousands of terms, times the condition of a
normaliser. Also states and gradients: they are sums of the same kind."""

FINITE_DIFFERENCE = 1e-6
"""A float64 gradient against central differences with step 1e-5: a truncation error of step^2 times the third
derivative, and rounding of 1e-16 / step."""

FLOAT32 = 1e-5
"""float32 values against float64: 6e-8 per rounding, tens of terms, and a quotient."""

FLOAT32_STATE = 1e-5
"""float32 sums of features: no quotient, but more terms than an output sees."""

FLOAT32_GRADIENT = 5e-5
"""float32 gradients against float64: the forward error once more, and a quotient's derivative squares its
normaliser."""

FLOAT32_ANGLE = 1e-7
"""Rotary embedding per position: the angle is a float32 product, so its error grows with the position."""

BFLOAT16 = 1e-2
"""bfloat16 inputs and outputs, float32 inside: the output is rounded to 8 bits (4e-3), and so are the weights
of a softmax or the taps of a convolution."""

FLOAT16 = 2e-3
"""As BFLOAT16 with 11 bits (5e-4)."""


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
