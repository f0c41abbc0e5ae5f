"""Hyena by BaseConv of the same width, with the input remembered in further rows (Zoology, proposition H.12).

The paper counts 5 L layers in N' + N rows. Its proof has u remembered below z and p^l = u W_l gate z; but a
projection reads its own row, so that z has to come down to u, and u leave for rows that are zero. One layer
does both:

    rows of u     (u W_l) * (h^l conv z, moved there)       the new z
    rows of 0     (0 + 1) * (u, moved there)                the new u
    the others    (.) * 0, or (0 + 0) * (.)

Its filter, h^l after one delay and a tap of 1 at another, drags u and z along everywhere. Seven blocks of N
rows, closed to a ring, leave room for that, so the order L takes L + 3 layers: the short filter, a copy of u,
the steps, and back to the top.
"""

import numpy as np

from based_jax.theory.base_conv import Matrix, Stack
from based_jax.theory.basic_layers import delta, masked_convolution, one_layer
from based_jax.theory.simulations.hyena import Hyena

RING = 7
"""Blocks of N rows."""

MOVES = (2, 4)
"""By how many blocks z and u move in every other step, the first among them; else z by 4 and u by 2."""


def hyena_by_rows(hyena: Hyena) -> Stack:
    """The operator in L + 3 layers on 7 N x d, or L + 2 without a short filter; circular convolutions."""
    _, length, width = hyena.filters.shape
    shape = (RING * length, width)

    def padded(filters: Matrix) -> Matrix:
        """Put zeros below, to the ring's length."""
        return np.pad(filters, ((0, shape[0] - length), (0, 0)))

    def mark(block: int) -> Matrix:
        """1 in the rows of this block of the ring, (7 N, 1)."""
        return np.repeat(np.arange(RING) == block % RING, length)[:, None].astype(np.float64)

    stack, (z, u) = Stack(shape), MOVES
    if hyena.short is not None:
        stack = masked_convolution(shape, padded(hyena.short), mark(0))
    # u in block 0 becomes u W_v there, and u itself comes to the block where z is to move.
    stack = stack.then(one_layer(shape, hyena.values, mark(z), delta(shape[0], z * length), mark(0)))
    block = 0
    for weights, filters in hyena.steps:
        # z, in `block`, comes down on u, `z` blocks below, and u goes `u` on.
        taps = np.roll(padded(filters), z * length, axis=0)
        taps[u * length] = 1
        stack = stack.then(one_layer(shape, weights, mark(block + z + u), taps, circular=True))
        block, z, u = block + z, u, z
    top = delta(shape[0], -block % RING * length)
    return stack.then(masked_convolution(shape, top, mark(0), circular=True))
