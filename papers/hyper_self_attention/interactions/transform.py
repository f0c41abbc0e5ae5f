"""Compute the transform of weights, which decides functional equivalence for any embedding.

    T[a, b, k] = (x_a^T C x_b) (x_b^T W)_k,      y_k at an entity a = sum_b s(b) T[a, b, k]

Two layers agree on all sequences of all lengths if and only if their T agree (Ustaomeroglu & Qu 2025,
corollary D.3). The sum of T over b, which corollary 4.9 prints, is not enough: it forgets which entity acts.
For HyperAttention the same holds with ordered or strict tuples; a sum over all tuples determines only the
part of T[a, b, c, k] that is symmetric in b and c.

If no sequence of the data has an entity twice, a layer cannot tell the length from one length of training
data: `length_bias` is invisible at that length and only there (section 4.3).
"""

from typing import Any, NamedTuple

import numpy as np

from based_jax.typing import Float


class Gap(NamedTuple):
    """The distance between two transforms."""

    mean_square: float
    largest: float


def transform(
    table: Float[np.ndarray, "S d"], c: Float[np.ndarray, " d *keys"], w: Float[np.ndarray, "*keys d2"]
) -> Float[np.ndarray, "S *entities d2"]:
    """Return T of self-attention, or of HyperAttention of order n, in float64: n axes of size S and outputs.

    T[a, b, ..., k] = C[x_a, x_b, ...] W[x_b, ...]_k for `c` of n axes of width d and `w` of n - 1 and d2.
    """
    scores, values = on_axes(table, c, c.ndim), on_axes(table, w, c.ndim - 1)
    return scores[..., None] * values


def on_axes(matrix: Any, tensor: Any, axes: int, xp: Any = np) -> Any:
    """Apply `matrix` to each of the first `axes` axes of `tensor`: (n, ..., n, *rest) -> (m, ..., m, *rest).

    Computes in float64 with NumPy, in the arguments' dtype with ``xp=jax.numpy``.
    """
    result = np.asarray(tensor, np.float64) if xp is np else tensor
    for axis in range(axes):
        result = xp.moveaxis(xp.tensordot(matrix, result, (1, axis)), 0, axis)
    return result


def gap(first: Float[np.ndarray, "*T"], second: Float[np.ndarray, "*T"]) -> Gap:
    """Return the mean square and largest absolute difference of two transforms of one shape."""
    difference = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64))
    return Gap(float((difference**2).mean()), float(difference.max()))
