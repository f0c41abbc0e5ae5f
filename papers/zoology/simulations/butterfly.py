"""Compute butterfly matrices by BaseConv (Zoology, definition H.14 to lemma H.18).

A butterfly factor adds to each entry its partner, k/2 further down or up in its block of k, each multiplied
by its own coefficient:

    (B x)[i] = own[i] x[i] + other[i] x[i xor k/2]

The vector is stored in a matrix u of n x d, row by row, and a layer has three blocks of d columns for it. If
partners are in the same row (k <= d), they are u P with a permutation P, and the factor takes one layer,
(u W) * b2, where W sums the blocks that the previous factor has left and copies the sum. If they are
k / (2 d) rows apart, W and b2 make three copies, one times `own`, one of the values to move down and one of
those to move up, and a second layer moves the latter two. A final layer sums them.

So a butterfly matrix of size n d takes 2 log2 n + log2 d + 1 layers, and (BB*)^w of expansion e takes
2 w (2 log2(e n) + log2 d) + 1. Lemma H.16 counts 5 log2(n d), from a proof that takes nine for one factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from papers.zoology.base_conv import Matrix, Shape, Stack
from papers.zoology.basic_layers import convolution, delta, linear, one_layer


@dataclass(frozen=True, eq=False)
class Factor:
    """A butterfly factor of block size k, on vectors of a power of 2."""

    size: int  # k, a power of 2
    own: np.ndarray  # (n,), on the diagonal: D1 and D4 of each block
    other: np.ndarray  # (n,), of the partner: D2 and D3

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Compute B x, (n,), as reference for stacks."""
        return self.own * x + self.other * x[self.partners]

    @property
    def partners(self) -> np.ndarray:
        """i xor k/2, (n,)."""
        return np.arange(len(self.own)) ^ self.size // 2

    @property
    def transposed(self) -> "Factor":
        """Return B^T."""
        return Factor(self.size, self.own, self.other[self.partners])


def butterfly(shape: Shape, factors: Sequence[Factor]) -> Stack:
    """Apply the factors in order: a layer for each of k <= d, two for larger k, and one in the end.

    The inner matrix is (N, 3 d), d a power of 2; the input is (n, d), n <= N, a vector row by row.
    """
    width, _rest = divmod(shape[1], 3)
    stack = Stack(shape)
    for factor in factors:
        stack = stack.then(_in_rows(shape, factor) if factor.size <= width else _across(shape, factor))
    return stack.then(linear(shape, _sum_to(np.eye(width), *np.zeros((2, width, width)))))


def butterfly_matrix(rng: np.random.Generator, length: int) -> list[Factor]:
    """Draw B = B_n ... B_4 B_2, its factors from B_2 on; a vector keeps its order of magnitude."""
    sizes = 2 ** np.arange(1, length.bit_length())
    return [Factor(int(size), *rng.normal(scale=2**-0.5, size=(2, length))) for size in sizes]


def kaleidoscope(rng: np.random.Generator, length: int, width: int) -> list[Factor]:
    """Draw a member of (BB*)^w: its 2 w log2 n factors in the order in which they act."""
    factors = []
    for _ in range(width):
        adjoint = [factor.transposed for factor in reversed(butterfly_matrix(rng, length))]
        factors += adjoint + butterfly_matrix(rng, length)
    return factors


def fourier_factors(points: int) -> list[Factor]:
    """Return the discrete Fourier transform of numbers in bit-reversed order, each as (real, imaginary).

    Complex butterflies [I, T; I, -T] are two real factors: the rotations T, of size 2, and [I, I; I, -I].
    """
    factors, position = [], np.arange(points)
    for size in 2 ** np.arange(1, points.bit_length()):
        upper = (position & size // 2) == 0
        angles = np.where(upper, 0, -2 * np.pi * (position % (size // 2)) / size)
        signs = np.where(upper, 1.0, -1.0)
        sines = np.stack([-np.sin(angles), np.sin(angles)], axis=1).reshape(-1)
        factors.append(Factor(2, np.repeat(np.cos(angles), 2), sines))
        factors.append(Factor(2 * int(size), np.repeat(signs, 2), np.ones(2 * points)))
    return factors


def _in_rows(shape: Shape, factor: Factor) -> Stack:
    """Map [x | y | z] to [own * s | other * partner of s | 0] with s = x + y + z."""
    width = shape[1] // 3
    same, partner = np.eye(width), np.eye(width)[np.arange(width) ^ factor.size // 2]
    weights = _sum_to(same, partner, np.zeros((width, width)))
    return _masked_linear(shape, weights, _rows(factor.own, shape), _rows(factor.other, shape))


def _across(shape: Shape, factor: Factor) -> Stack:
    """Map [x | y | z] to [own * s | values from above | values from below]."""
    length, width = shape[0], shape[1] // 3
    half = factor.size // 2
    sent = factor.other[factor.partners]  # the coefficient at the value's origin
    down = (np.arange(len(sent)) & half) == 0
    copies = _sum_to(*(np.eye(width),) * 3)
    masks = (_rows(mask, shape) for mask in (factor.own, sent * down, sent * ~down))
    lags = (0, half // width, -(half // width) % length)
    filters = np.hstack([np.repeat(delta(length, lag), width, axis=1) for lag in lags])
    return _masked_linear(shape, copies, *masks).then(convolution(shape, filters, circular=True))


def _sum_to(*blocks: Matrix) -> Matrix:
    """Return W that adds three blocks of columns and multiplies the sum by each of these side by side."""
    return np.tile(np.hstack(blocks), (3, 1))


def _masked_linear(shape: Shape, weights: Matrix, *masks: Matrix) -> Stack:
    """Compute (u W) * [masks | 0] in one layer."""
    columns = np.hstack(masks)
    return one_layer(shape, weights, bias_2=np.pad(columns, ((0, 0), (0, shape[1] - columns.shape[1]))))


def _rows(vector: np.ndarray, shape: Shape) -> Matrix:
    """Return a vector row by row, with rows of zeros below: (N, d)."""
    matrix = np.zeros((shape[0], shape[1] // 3))
    matrix.reshape(-1)[: len(vector)] = vector
    return matrix
