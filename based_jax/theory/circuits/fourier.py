"""The fast Fourier transform of 2^k points as a circuit: sums and products with constants only.

Complex numbers are pairs of values. Merged, its levels are one dense layer; level by level they are at most
4 log2 n sparse ones, with O(n log n) numbers other than 0 together: what depth buys.
"""

import cmath
from collections.abc import Sequence
from typing import Any

import numpy as np

from based_jax.validate import expect


def fourier(values: Sequence[Any]) -> list[Any]:
    """The transform sum_j exp(-2 pi i j k / n) x_j of n = 2^k points.

    Args:
        values: 2 n, the real parts, then the imaginary ones: wires, numbers or arrays.

    Returns:
        2 n, in the same order.
    """
    size = len(values) // 2
    expect(len(values) == 2 * size and size & (size - 1) == 0 < size, "len(values)", len(values), "2^(k+1)")
    if size == 1:
        return list(values)
    real, imaginary = values[:size], values[size:]
    even_re, even_im = _halves(fourier([*real[::2], *imaginary[::2]]))
    odd_re, odd_im = _halves(fourier([*real[1::2], *imaginary[1::2]]))
    turned = [_turn(k / size, *odd) for k, odd in enumerate(zip(odd_re, odd_im, strict=True))]
    turned_re, turned_im = zip(*turned, strict=True)
    return [
        *_add(even_re, turned_re), *_subtract(even_re, turned_re),
        *_add(even_im, turned_im), *_subtract(even_im, turned_im),
    ]  # fmt: skip


def _turn(fraction: float, real: Any, imaginary: Any) -> tuple[Any, Any]:
    """A complex number times exp(-2 pi i fraction); quarters of a turn are exact, and cost no gates."""
    factor = (-1j) ** int(4 * fraction) * cmath.exp(-2j * cmath.pi * (fraction % 0.25))
    return factor.real * real - factor.imag * imaginary, factor.real * imaginary + factor.imag * real


def numpy_fourier(u: np.ndarray) -> np.ndarray:
    """The same by `numpy.fft`, (..., 2 n) to (..., 2 n)."""
    real, imaginary = np.split(u, 2, axis=-1)
    transformed = np.fft.fft(real + 1j * imaginary)
    return np.concatenate([transformed.real, transformed.imag], axis=-1)


def _halves(values: list[Any]) -> tuple[list[Any], list[Any]]:
    return values[: len(values) // 2], values[len(values) // 2 :]


def _add(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    return [a + b for a, b in zip(left, right, strict=True)]


def _subtract(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    return [a - b for a, b in zip(left, right, strict=True)]
