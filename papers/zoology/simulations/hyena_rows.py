"""Compute Hyena by BaseConv of the same width, with the input kept in further rows (Zoology, H.12).

The paper counts 5 L layers in N' + N rows. Its proof keeps u below z and lets p^l = u W_l gate z; but a
projection reads its own row, so z has to move down to u, and u to rows that are zero. One layer
does both:

    rows of u     (u W_l) * (h^l conv z, moved there)       the new z
    rows of 0     (0 + 1) * (u, moved there)                the new u
    the others    (.) * 0, or (0 + 0) * (.)

Its filter, h^l after one delay and a tap of 1 at another, also copies u and z elsewhere. Seven blocks of N
rows, in a ring, have capacity for that, so the order L takes L + 3 layers: the short filter, a copy of u,
the steps, and the move back to the top.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.basic_layers import delta, masked_convolution, one_layer
from papers.zoology.simulations.hyena import Hyena

RING = 7
"""Number of blocks of N rows."""

MOVES = (2, 4)
"""Blocks by which z and u move in every other step, beginning with the first; else z by 4 and u by 2."""


def hyena_by_rows(hyena: Hyena) -> Stack:
    """Return the operator in L + 3 circular layers on 7 N x d, or L + 2 without a short filter."""
    _, length, width = hyena.filters.shape
    shape = (RING * length, width)

    def padded(filters: Matrix) -> Matrix:
        """Pad with zeros to the ring's length."""
        return np.pad(filters, ((0, shape[0] - length), (0, 0)))

    def mark(block: int) -> Matrix:
        """Return 1 in the rows of this block of the ring, (7 N, 1)."""
        return np.repeat(np.arange(RING) == block % RING, length)[:, None].astype(np.float64)

    stack, (z, u) = Stack(shape), MOVES
    if hyena.short is not None:
        stack = masked_convolution(shape, padded(hyena.short), mark(0))
    # u in block 0 becomes u W_v there, and u itself moves to the block to which z will move.
    stack = stack.then(one_layer(shape, hyena.values, mark(z), delta(shape[0], z * length), mark(0)))
    block = 0
    for weights, filters in hyena.steps:
        # z, in `block`, moves down onto u, `z` blocks below, and u moves `u` blocks on.
        taps = np.roll(padded(filters), z * length, axis=0)
        taps[u * length] = 1
        stack = stack.then(one_layer(shape, weights, mark(block + z + u), taps, circular=True))
        block, z, u = block + z, u, z
    top = delta(shape[0], -block % RING * length)
    return stack.then(masked_convolution(shape, top, mark(0), circular=True))
