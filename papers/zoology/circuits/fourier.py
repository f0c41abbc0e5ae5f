"""Write the fast Fourier transform of 2^k points as a circuit: sums and products with constants only.

Complex numbers are pairs of values. Merged, its levels are one dense layer; level by level they are at most
4 log2 n sparse ones, with O(n log n) nonzero numbers together: depth buys sparsity.
"""

import cmath
from collections.abc import Sequence
from operator import add, sub
from typing import Any

import numpy as np


def fourier(values: Sequence[Any]) -> list[Any]:
    """Return the transform sum_j exp(-2 pi i j k / n) x_j of n = 2^k points.

    Values are wires, numbers or arrays: n real parts, then n imaginary ones, as are those returned.
    """
    size = len(values) // 2
    if size == 1:
        return list(values)
    half = size // 2
    even, odd = (fourier([*values[k:size:2], *values[size + k :: 2]]) for k in range(2))
    real, imaginary = zip(*(_turn(k / size, odd[k], odd[half + k]) for k in range(half)), strict=True)
    parts = ((even[:half], real), (even[half:], imaginary))
    return [value for a, b in parts for value in (*map(add, a, b), *map(sub, a, b))]


def _turn(fraction: float, real: Any, imaginary: Any) -> tuple[Any, Any]:
    """Multiply a complex number by exp(-2 pi i fraction); quarter turns are exact, and cost no gates."""
    factor = (-1j) ** int(4 * fraction) * cmath.exp(-2j * cmath.pi * (fraction % 0.25))
    return factor.real * real - factor.imag * imaginary, factor.real * imaginary + factor.imag * real


def numpy_fourier(u: np.ndarray) -> np.ndarray:
    """Return the same by `numpy.fft`, (..., 2 n) to (..., 2 n)."""
    real, imaginary = np.split(u, 2, axis=-1)
    transformed = np.fft.fft(real + 1j * imaginary)
    return np.concatenate([transformed.real, transformed.imag], axis=-1)
