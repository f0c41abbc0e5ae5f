"""BaseConv as in the theory: layers with explicit weights that are stacked and counted.

    y = (u W + b1) * (h conv u + b2)        u, y, b1, b2, h: N x D,  W: D x D

(Zoology, definition 4.1; Based, definition F.2). Two things distinguish it from the trained layer,
`mixers.BaseConv`: its biases depend on the position, which makes them masks, and it has no residual sum. The
convolution is causal, or circular, column by column.

Everything here is NumPy in float64, whatever JAX's precision: the constructions are exact, so errors show.
Rows and columns count from 0; the papers count from 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Matrix = np.ndarray
"""A float64 array with two axes."""

Shape = tuple[int, int]
"""(N, D) of the inner matrix, for every argument named `shape`."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, (N, D) to (N, D)."""

    weights: Matrix
    """W, (D, D)"""
    bias_1: Matrix
    """b1, of the projection, (N, D)"""
    filters: Matrix
    """h, one per column, (N, D)"""
    bias_2: Matrix
    """b2, of the convolution, (N, D)"""
    circular: bool = False
    """whether the convolution wraps around"""

    def __call__(self, u: Matrix) -> Matrix:
        """Apply the layer to u, (N, D); return (N, D)."""
        conv = convolve(self.filters, u, self.circular)
        return (u @ self.weights + self.bias_1) * (conv + self.bias_2)

    @property
    def parameters(self) -> int:
        """Number of parameters: D^2 + 3 N D."""
        return self.weights.size + 3 * self.filters.size

    @property
    def nonzeros(self) -> int:
        """Number of nonzero parameters."""
        arrays = (self.weights, self.bias_1, self.filters, self.bias_2)
        return sum(int(np.count_nonzero(array)) for array in arrays)


@dataclass(frozen=True)
class Account:
    """The cost of a stack."""

    layers: int
    length: int
    """rows of the inner matrix, N~"""
    width: int
    """its columns, D~"""
    parameters: int
    nonzeros: int


@dataclass(frozen=True, eq=False)
class Stack:
    """Layers applied in order to one inner matrix: an (N, L, D, N~, D~)-BaseConv.

    The input is placed in the top left corner of a matrix of zeros, and the output is read from there.
    """

    shape: Shape
    """(N~, D~) of the inner matrix"""
    layers: tuple[Layer, ...] = ()
    """each of that shape; no layer is the identity"""

    def __call__(self, u: Matrix, shape: Shape | None = None) -> Matrix:
        """Apply the layers to u, (N, D); return the top left corner, of `shape` (default: that of u)."""
        rows, columns = shape or u.shape
        y = np.zeros(self.shape)
        y[: u.shape[0], : u.shape[1]] = u
        for layer in self.layers:
            y = layer(y)
        return y[:rows, :columns]

    def then(self, *others: "Stack") -> "Stack":
        """Return this stack followed by the others, on the same inner matrix (Zoology, lemma H.11)."""
        return Stack(self.shape, self.layers + tuple(layer for other in others for layer in other.layers))

    @property
    def account(self) -> Account:
        """Count layers and parameters."""
        parameters = sum(layer.parameters for layer in self.layers)
        nonzeros = sum(layer.nonzeros for layer in self.layers)
        return Account(len(self.layers), *self.shape, parameters, nonzeros)


def convolve(filters: Matrix, u: Matrix, circular: bool = False) -> Matrix:
    """Convolve each column of `u` with its filter: y[i] = sum_j h[j] u[i - j], all of them (N, D).

    The sum is over j <= i, or over all j with i - j modulo N if `circular`. Lags without a tap in any filter
    cost nothing, and a filter of one tap of 1 moves rows without rounding.
    """
    y = np.zeros(u.shape)
    for lag in np.flatnonzero(np.any(filters, axis=1)):
        if circular:
            y += filters[lag] * np.roll(u, lag, axis=0)
        else:
            y[lag:] += filters[lag] * u[: len(u) - lag]
    return y


def stack(layers: Sequence[Layer]) -> Stack:
    """Return the stack of at least one layer."""
    length, width = layers[0].filters.shape
    return Stack((length, width), tuple(layers))
