"""Move rows down or up, in one layer each, and add them (Zoology, propositions H.8, H.9; Based, F.6).

Down is a causal convolution with a single tap. Up is a circular one, which moves the first rows around to the
end; the layer's other half masks them. The paper has three layers for it, as it reverses the rows, moves them
down and reverses them back. But no convolution reverses rows: the filter e_0 that it uses is the identity.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Shape, Stack
from papers.zoology.basic_layers import convolution, delta, masked_convolution, one_layer


def shift_down(shape: Shape, by: int) -> Stack:
    """Move row i to row i + `by`, with zeros at the top; one causal layer."""
    return convolution(shape, delta(shape[0], by) if by < shape[0] else np.zeros((shape[0], 1)))


def shift_up(shape: Shape, by: int) -> Stack:
    """Move row i to row i - `by`, with zeros at the bottom; one circular layer."""
    stays = np.arange(shape[0]) < shape[0] - by
    return masked_convolution(shape, delta(shape[0], -by % shape[0]), stays[:, None] * 1.0, circular=True)


def shifted_down(u: Matrix, by: int) -> Matrix:
    """Compute the result of `shift_down` directly."""
    return np.concatenate([np.zeros((by, u.shape[1])), u])[: len(u)]


def shifted_up(u: Matrix, by: int) -> Matrix:
    """Compute the result of `shift_up` directly."""
    return np.concatenate([u, np.zeros((by, u.shape[1]))])[by:]


def add(shape: Shape, rows: int) -> Stack:
    """Map [x; S; 0] to [1; S + x; 0], where x and S have n = `rows`: a window is added to a running sum.

    The first of two layers moves x down onto S and clears the rest; the second writes the ones, by which the
    next window is multiplied.
    """
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
