"""Sum columns in one layer (Based, propositions F.10 and F.11)."""

import numpy as np

from papers.zoology.base_conv import Matrix, Shape, Stack
from papers.zoology.basic_layers import linear


def sum_column_blocks(shape: Shape, width: int) -> Stack:
    """Write the sum of all blocks of `width` columns into the first of them, and zeros into the others.

    W[i, j] = 1 where j < width and i = j mod width; the printed condition is unreadable.
    """
    weights = np.zeros((shape[1], shape[1]))
    weights[:, :width] = np.tile(np.eye(width), (shape[1] // width, 1))
    return linear(shape, weights)


def sum_all_columns(shape: Shape) -> Stack:
    """Write the sum of all columns into the first, and zeros into the others."""
    return sum_column_blocks(shape, 1)


def column_blocks_summed(u: Matrix, width: int) -> Matrix:
    """Compute the result of `sum_column_blocks` directly."""
    z = np.zeros_like(u)
    z[:, :width] = u.reshape(len(u), -1, width).sum(axis=1)
    return z
