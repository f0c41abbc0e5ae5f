"""BaseConv as the theory has it: layers that can be written down, stacked and counted.

    y = (u W + b1) * (h conv u + b2)        u, y, b1, b2, h: N x D,  W: D x D

(Zoology, definition 4.1; Based, definition F.2). Two things set it apart from the layer that is trained,
`mixers.BaseConv`: its biases depend on the position, which makes them masks, and nothing is added behind it.
The convolution is causal, or circular, column by column.

Everything here is NumPy in float64, whatever precision JAX is set to: the constructions are exact, so what
they get wrong shows. Rows and columns count from 0, where the papers count from 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from based_jax.validate import expect, expect_array

Matrix = np.ndarray
"""Two axes, float64."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer; all arrays are float64.

    Attributes:
        weights: W, (D, D).
        bias_1: b1, of the projection, (N, D).
        filters: h, one per column, (N, D).
        bias_2: b2, of the convolution, (N, D).
        circular: whether the convolution wraps around.
    """

    weights: Matrix
    bias_1: Matrix
    filters: Matrix
    bias_2: Matrix
    circular: bool = False

    def __post_init__(self) -> None:
        length, width = np.shape(self.filters)
        expect_array("weights", self.weights, (width, width))
        for name in ("bias_1", "bias_2"):
            expect_array(name, getattr(self, name), (length, width))

    def __call__(self, u: Matrix) -> Matrix:
        expect_array("u", u, self.filters.shape)
        conv = convolve(self.filters, u, self.circular)
        return (u @ self.weights + self.bias_1) * (conv + self.bias_2)

    @property
    def parameters(self) -> int:
        """How many numbers the layer has: D^2 + 3 N D."""
        return self.weights.size + 3 * self.filters.size

    @property
    def nonzeros(self) -> int:
        """How many of them are not zero."""
        arrays = (self.weights, self.bias_1, self.filters, self.bias_2)
        return sum(int(np.count_nonzero(array)) for array in arrays)


@dataclass(frozen=True)
class Account:
    """What a stack costs."""

    layers: int
    length: int
    """rows of the inner matrix, N~"""
    width: int
    """its columns, D~"""
    parameters: int
    nonzeros: int


@dataclass(frozen=True, eq=False)
class Stack:
    """Layers one behind the other, all on one inner matrix: an (N, L, D, N~, D~)-BaseConv.

    The input stands in the top left corner of a matrix of zeros, and there the output is read.

    Attributes:
        shape: (N~, D~) of the inner matrix.
        layers: of that shape each; none is the identity.
    """

    shape: tuple[int, int]
    layers: tuple[Layer, ...] = field(default=())

    def __post_init__(self) -> None:
        for layer in self.layers:
            expect_array("filters of a layer", layer.filters, self.shape)

    def __call__(self, u: Matrix, shape: tuple[int, int] | None = None) -> Matrix:
        """The output's top left corner.

        Args:
            u: (N, D), at most as large as the inner matrix.
            shape: of the corner that is read; None takes that of `u`.

        Returns:
            (N, D), or `shape`, float64.

        Raises:
            ValueError: `u` or `shape` is larger than the inner matrix.
        """
        expect_array("u", u, (None, None))
        rows, columns = u.shape if shape is None else shape
        for name, (length, width) in (("u.shape", u.shape), ("shape", (rows, columns))):
            fits = length <= self.shape[0] and width <= self.shape[1]
            expect(fits, name, (length, width), f"at most the inner shape {self.shape}")
        y = np.zeros(self.shape)
        y[: u.shape[0], : u.shape[1]] = u
        for layer in self.layers:
            y = layer(y)
        return y[:rows, :columns]

    def then(self, *others: "Stack") -> "Stack":
        """This stack and the others behind it, on the same inner matrix (Zoology, lemma H.11)."""
        return Stack(self.shape, self.layers + tuple(layer for other in others for layer in other.layers))

    @property
    def account(self) -> Account:
        """Layers, inner shape and parameters, counted."""
        parameters = sum(layer.parameters for layer in self.layers)
        nonzeros = sum(layer.nonzeros for layer in self.layers)
        return Account(len(self.layers), *self.shape, parameters, nonzeros)


def convolve(filters: Matrix, u: Matrix, circular: bool = False) -> Matrix:
    """Each column of `u` with its filter, cut to their length: y[i] = sum_j h[j] u[i - j].

    Lags without a tap in any filter cost nothing, and a filter of one tap of 1 moves rows without rounding.

    Args:
        filters: h, (N, D).
        u: (N, D).
        circular: whether i - j counts modulo N; otherwise only j <= i.

    Returns:
        (N, D).
    """
    y = np.zeros(u.shape)
    for lag in np.flatnonzero(np.any(filters, axis=1)):
        if circular:
            y += filters[lag] * np.roll(u, lag, axis=0)
        else:
            y[lag:] += filters[lag] * u[: len(u) - lag]
    return y


def stack(layers: Sequence[Layer]) -> Stack:
    """The stack of at least one layer, on the first one's inner matrix."""
    expect(len(layers) > 0, "layers", layers, "at least one")
    length, width = layers[0].filters.shape
    return Stack((length, width), tuple(layers))
