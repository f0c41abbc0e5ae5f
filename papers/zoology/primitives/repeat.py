"""Repeat columns, or the whole matrix, in one layer each (Based, propositions F.7 and F.8)."""

import numpy as np

from papers.zoology.base_conv import Shape, Stack
from papers.zoology.basic_layers import convolution, delta, linear
from papers.zoology.primitives.column_blocks import repeated


def repeat_columns(shape: Shape, times: int) -> Stack:
    """Repeat each of the first D / `times` columns `times` times in a row, ignoring the other columns.

    W[i, j] = 1 where floor(j / times) = i. The proposition prints the transpose, which sums columns.
    """
    width = shape[1] // times
    return linear(shape, np.pad(repeated(width, times), ((0, shape[1] - width), (0, 0))))


def repeat_matrix(shape: Shape, times: int) -> Stack:
    """Repeat the first N / `times` rows, below each other, `times` times; the other rows have to be 0."""
    return convolution(shape, delta(shape[0], *range(0, shape[0], shape[0] // times)))
