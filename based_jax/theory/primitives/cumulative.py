"""The sum of all rows so far, in one layer (Based, proposition F.9)."""

import numpy as np

from based_jax.theory.base_conv import Matrix, Stack
from based_jax.theory.basic_layers import convolution


def cumulative_sum(shape: tuple[int, int]) -> Stack:
    """Row i becomes the sum of rows 0..i: the filter is 1 at every lag.

    Args:
        shape: (N, D) of the inner matrix.
    """
    return convolution(shape, np.ones((shape[0], 1)))


def summed_so_far(u: Matrix) -> Matrix:
    """What `cumulative_sum` computes."""
    return np.cumsum(u, axis=0)
