"""Hyena by BaseConv of the same width, with the input remembered in further rows (Zoology, proposition H.12).

The paper counts 5 L layers in N' + N rows. Its proof has u remembered below z and p^l = u W_l gate z; but a
projection reads its own row, so that z has to come down to u, and u leave for rows that are zero. One layer
does both:

    rows of u     (u W_l) * (h^l conv z, moved there)       the new z
    rows of 0     (0 + 1) * (u, moved there)                the new u
    the others    (.) * 0, or (0 + 0) * (.)

Its filter, h^l behind one delay and a tap of 1 at another, drags u and z along everywhere. Seven blocks of N
rows, closed to a ring, leave room for that, so the order L takes L + 3 layers: the short filter, a copy of u,
the steps, and back to the top.
"""

import numpy as np

from based_jax.theory.base_conv import Layer, Matrix, Stack
from based_jax.theory.basic_layers import delta, masked_convolution
from based_jax.theory.simulations.hyena import Hyena

RING = 7
"""Blocks of N rows."""

MOVES = (2, 4)
"""By how many blocks z and u move in every other step, the first among them; else z by 4 and u by 2."""


def hyena_by_rows(hyena: Hyena) -> Stack:
    """The operator in L + 3 layers on 7 N x d, or L + 2 without a short filter; circular convolutions."""
    _, length, width = hyena.filters.shape
    shape = (RING * length, width)
    stack = Stack(shape)
    if hyena.short is not None:
        stack = masked_convolution(shape, _padded(hyena.short), _mark(length, 0))
    place, moves = 0, MOVES
    stack = stack.then(Stack(shape, (_copy(hyena.values, length, moves[0]),)))
    for weights, filters in hyena.steps:
        stack = stack.then(Stack(shape, (_step(weights, filters, place, moves),)))
        place, moves = place + moves[0], (moves[1], moves[0])
    up = delta(RING * length, -place % RING * length)
    return stack.then(masked_convolution(shape, up, _mark(length, 0), circular=True))


def _copy(weights: Matrix, length: int, move: int) -> Layer:
    """u in block 0 becomes u W there, and u itself in block `move`."""
    shape = (RING * length, len(weights))
    down = np.broadcast_to(delta(shape[0], move * length), shape)
    copy, here = (np.broadcast_to(_mark(length, place), shape) for place in (move, 0))
    return Layer(weights, copy, down, here)


def _step(weights: Matrix, filters: Matrix, place: int, moves: tuple[int, int]) -> Layer:
    """z, in block `place`, comes down on u, `moves[0]` blocks below it, and u goes `moves[1]` blocks on."""
    length, _ = filters.shape
    taps = np.roll(_padded(filters), moves[0] * length, axis=0)
    taps[moves[1] * length] = 1
    copy = np.broadcast_to(_mark(length, place + sum(moves)), taps.shape)
    return Layer(weights, copy, taps, np.zeros_like(taps), circular=True)


def _padded(filters: Matrix) -> Matrix:
    """Zeros below, to the ring's length."""
    return np.pad(filters, ((0, (RING - 1) * len(filters)), (0, 0)))


def _mark(length: int, place: int) -> Matrix:
    """1 in the rows of this block of the ring, (7 N, 1)."""
    return np.repeat(np.arange(RING) == place % RING, length)[:, None].astype(np.float64)
