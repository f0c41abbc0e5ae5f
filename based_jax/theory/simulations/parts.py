"""Parts of a layer, for `primitives.column_blocks.rewrite`, that convolve their columns."""

import numpy as np

from based_jax.theory.base_conv import Matrix
from based_jax.theory.primitives.column_blocks import Part


def convolved(columns: slice, filters: Matrix) -> Part:
    """columns <- h conv columns, for one filter (N, 1) or as many as columns."""
    return Part(columns, columns, np.zeros((1, 1)), bias_1=1.0, filters=filters, bias_2=0.0)


def gated(columns: slice, read: slice, weights: Matrix, filters: Matrix, bias: Matrix | float = 0.0) -> Part:
    """columns <- (u[:, read] W + bias) * (h conv columns)."""
    return Part(columns, read, weights, bias_1=bias, filters=filters, bias_2=0.0)
