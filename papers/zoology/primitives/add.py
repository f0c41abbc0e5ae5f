"""Add a window to a running sum, in two layers (Zoology, proposition H.9).

    rows 0..n-1       x        1
    rows n..2n-1      S   ->   S + x
    the others        0        0

The first layer moves x down onto S and clears the rest; the second writes the ones, by which the next
window is multiplied.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Shape, Stack
from papers.zoology.basic_layers import delta, masked_convolution, one_layer


def add(shape: Shape, rows: int) -> Stack:
    """Map [x; S; 0] to [1; S + x; 0], where x and S have n = `rows`."""
    length, _ = shape
    window, total = np.zeros((2, length, 1))
    window[:rows] = total[rows : 2 * rows] = 1
    onto = masked_convolution(shape, delta(length, 0, rows), total)
    return onto.then(one_layer(shape, bias_1=window + total, filters=delta(length), bias_2=window))


def added(u: Matrix, rows: int) -> Matrix:
    """Compute the result of `add` directly."""
    z = np.zeros_like(u)
    z[:rows] = 1
    z[rows : 2 * rows] = u[:rows] + u[rows : 2 * rows]
    return z
