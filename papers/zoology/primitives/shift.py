"""Move rows down or up, in one layer each (Zoology, proposition H.8; Based, F.6).

Down is a causal convolution with a single tap. Up is a circular one, which moves the first rows around to the
end; the layer's other half masks them. The paper has three layers for it, as it reverses the rows, moves them
down and reverses them back. But no convolution reverses rows: the filter e_0 that it uses is the identity.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Shape, Stack
from papers.zoology.basic_layers import convolution, delta, masked_convolution


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
