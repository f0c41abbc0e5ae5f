"""Repeat and sum columns and rows, in one layer each (Based, propositions F.7 to F.11)."""

import numpy as np

from papers.zoology.base_conv import Matrix, Shape, Stack
from papers.zoology.basic_layers import convolution, delta, linear
from papers.zoology.primitives.column_blocks import repeated


def repeat_columns(shape: Shape, times: int) -> Stack:
    """Repeat each of the first D / `times` columns `times` times in a row, ignoring the other columns.

    W[i, j] = 1 where floor(j / times) = i. Proposition F.7 prints the transpose, which sums columns.
    """
    width = shape[1] // times
    return linear(shape, np.pad(repeated(width, times), ((0, shape[1] - width), (0, 0))))


def repeat_matrix(shape: Shape, times: int) -> Stack:
    """Repeat the first N / `times` rows, below each other, `times` times; the other rows have to be 0."""
    return convolution(shape, delta(shape[0], *range(0, shape[0], shape[0] // times)))


def cumulative_sum(shape: Shape) -> Stack:
    """Replace row i by the sum of rows 0..i: the filter is 1 at every lag."""
    return convolution(shape, np.ones((shape[0], 1)))


def sum_column_blocks(shape: Shape, width: int) -> Stack:
    """Write the sum of all blocks of `width` columns into the first of them, and zeros into the others.

    W[i, j] = 1 where j < width and i = j mod width; the printed condition is unreadable. Proposition F.10 has
    a width of 1.
    """
    weights = np.zeros((shape[1], shape[1]))
    weights[:, :width] = np.tile(np.eye(width), (shape[1] // width, 1))
    return linear(shape, weights)


def column_blocks_summed(u: Matrix, width: int) -> Matrix:
    """Compute the result of `sum_column_blocks` directly."""
    z = np.zeros_like(u)
    z[:, :width] = u.reshape(len(u), -1, width).sum(axis=1)
    return z
