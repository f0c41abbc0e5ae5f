"""The three layers everything else is made of: a projection, a convolution, a gate (Zoology, lemma H.7)."""

import numpy as np

from based_jax.theory.base_conv import Layer, Matrix, Stack


def linear(shape: tuple[int, int], weights: Matrix) -> Stack:
    """u -> u W in one layer: the convolution's half is 1.

    Args:
        shape: (N, D) of the inner matrix.
        weights: W, (D, D).
    """
    return Stack(shape, (Layer(weights, np.zeros(shape), np.zeros(shape), np.ones(shape)),))


def convolution(shape: tuple[int, int], filters: Matrix, circular: bool = False) -> Stack:
    """u -> h conv u in one layer: the projection's half is 1.

    Args:
        shape: (N, D) of the inner matrix.
        filters: h, (N, D) or (N, 1) for one filter in all columns.
        circular: whether it wraps around.
    """
    return masked_convolution(shape, filters, np.ones(shape), circular)


def gate(shape: tuple[int, int], factors: Matrix) -> Stack:
    """u -> v * u in one layer, for a fixed v.

    Args:
        shape: (N, D) of the inner matrix.
        factors: v, (N, D), or (N, 1) or (1, D) for one factor in a row or column.
    """
    return masked_convolution(shape, delta(shape[0]), factors)


def masked_convolution(
    shape: tuple[int, int], filters: Matrix, factors: Matrix, circular: bool = False
) -> Stack:
    """u -> v * (h conv u) in one layer, for a fixed v: what most primitives are.

    Args:
        shape: (N, D) of the inner matrix.
        filters: h, (N, D) or (N, 1) for one filter in all columns.
        factors: v, (N, D), or (N, 1) or (1, D) for one factor in a row or column.
        circular: whether the convolution wraps around.
    """
    filters, factors = np.broadcast_to(filters, shape), np.broadcast_to(factors, shape)
    layer = Layer(np.zeros((shape[1], shape[1])), factors, filters, np.zeros(shape), circular)
    return Stack(shape, (layer,))


def delta(length: int, *lags: int) -> Matrix:
    """A filter, (N, 1), with a tap of 1 at each lag (default at 0, which convolves to the input itself)."""
    taps = np.zeros((length, 1))
    taps[list(lags or (0,))] = 1
    return taps
