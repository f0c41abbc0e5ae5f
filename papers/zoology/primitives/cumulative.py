"""Sum all rows so far, in one layer (Based, proposition F.9)."""

import numpy as np

from papers.zoology.base_conv import Shape, Stack
from papers.zoology.basic_layers import convolution


def cumulative_sum(shape: Shape) -> Stack:
    """Replace row i by the sum of rows 0..i: the filter is 1 at every lag."""
    return convolution(shape, np.ones((shape[0], 1)))
