"""Build the three basic layers: a projection, a convolution, a gate (Zoology, lemma H.7)."""

import numpy as np

from papers.zoology.base_conv import Layer, Matrix, Shape, Stack


def one_layer(
    shape: Shape,
    weights: Matrix | float = 0.0,
    bias_1: Matrix | float = 0.0,
    filters: Matrix | float = 0.0,
    bias_2: Matrix | float = 0.0,
    circular: bool = False,
) -> Stack:
    """Return the stack of one `Layer`, whose arguments are broadcast; omitted ones are 0."""
    weights = np.zeros((shape[1], shape[1])) if np.ndim(weights) == 0 else np.asarray(weights)
    b1, h, b2 = (np.broadcast_to(part, shape) for part in (bias_1, filters, bias_2))
    return Stack(shape, (Layer(weights, b1, h, b2, circular),))


def linear(shape: Shape, weights: Matrix) -> Stack:
    """Compute u -> u W in one layer: the convolution's half is 1."""
    return one_layer(shape, weights, bias_2=1.0)


def convolution(shape: Shape, filters: Matrix, circular: bool = False) -> Stack:
    """Compute u -> h conv u in one layer, for `filters` of (N, D), or (N, 1) for all columns."""
    return masked_convolution(shape, filters, 1.0, circular)


def gate(shape: Shape, factors: Matrix) -> Stack:
    """Compute u -> v * u in one layer, for fixed `factors` v that broadcast to (N, D)."""
    return masked_convolution(shape, delta(shape[0]), factors)


def masked_convolution(
    shape: Shape, filters: Matrix, factors: Matrix | float, circular: bool = False
) -> Stack:
    """Compute u -> v * (h conv u) in one layer, for fixed `factors` v: the form of most primitives."""
    return one_layer(shape, bias_1=factors, filters=filters, circular=circular)


def delta(length: int, *lags: int) -> Matrix:
    """Return a filter, (N, 1), with a tap of 1 at each lag (default 0, the identity)."""
    taps = np.zeros((length, 1))
    taps[list(lags or (0,))] = 1
    return taps
