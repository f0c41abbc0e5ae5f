"""Rewrite some blocks of columns in a layer and keep the others.

A BaseConv layer multiplies columns: what W reads, from anywhere, and the convolution of the column itself. So
a wide inner matrix can hold several operands side by side, and a layer that works on one of them keeps the
others with the identity in W, filters 0 and b2 = 1. Operands that are stacked in rows instead have to be
moved out of the convolution's reach (Based, F.13, "remember").
"""

from typing import NamedTuple

import numpy as np

from papers.zoology.base_conv import Layer, Matrix, Shape, Stack
from papers.zoology.basic_layers import delta


class Part(NamedTuple):
    """New values of some columns: (u[:, read] W + b1) * (h conv u[:, columns] + b2).

    b1, h and b2 broadcast to (N, number of columns). Without h and b2 it is the linear map alone.
    """

    columns: slice
    read: slice
    weights: Matrix
    bias_1: Matrix | float = 0.0
    filters: Matrix | float = 0.0
    bias_2: Matrix | float = 1.0


def rewrite(shape: Shape, *parts: Part) -> Stack:
    """Compute all parts, of distinct columns, in one layer; columns that no part names are kept."""
    weights = np.eye(shape[1])
    bias_1, filters, bias_2 = np.zeros(shape), np.zeros(shape), np.ones(shape)
    for part in parts:
        weights[:, part.columns] = 0
        weights[part.read, part.columns] = part.weights
        bias_1[:, part.columns] = part.bias_1
        filters[:, part.columns] = part.filters
        bias_2[:, part.columns] = part.bias_2
    return Stack(shape, (Layer(weights, bias_1, filters, bias_2),))


class Run(NamedTuple):
    """Neighbouring blocks of equal width: `count` of them from column `start`."""

    start: int
    width: int
    count: int

    def block(self, number: int) -> slice:
        """Return the columns of one of them."""
        return block(self.start + number * self.width, self.width)


def multiply_blocks(shape: Shape, *runs: Run) -> Stack:
    """Multiply a run's blocks, entry by entry, into its first block; any number of runs at once.

    A binary tree in place: a block is multiplied by the one `step` further right, which W reads. For 0s and
    1s it is AND. Needs ceil(log2 count) layers, of the longest run; the other blocks end as scratch.
    """
    own = delta(shape[0])
    stack, step = Stack(shape), 1
    while step < max(run.count for run in runs):
        parts = [
            gated(run.block(left), run.block(left + step), np.eye(run.width), own)
            for run in runs
            for left in range(0, run.count - step, 2 * step)
        ]
        stack, step = stack.then(rewrite(shape, *parts)), 2 * step
    return stack


def convolved(columns: slice, filters: Matrix, mask: Matrix | float = 1.0) -> Part:
    """columns <- mask * (h conv columns), for one filter (N, 1) or as many as columns."""
    return gated(columns, columns, np.zeros((1, 1)), filters, mask)


def gated(columns: slice, read: slice, weights: Matrix, filters: Matrix, bias: Matrix | float = 0.0) -> Part:
    """columns <- (u[:, read] W + bias) * (h conv columns)."""
    return Part(columns, read, weights, bias, filters, bias_2=0.0)


def block(start: int, width: int) -> slice:
    """Return the `width` columns from `start` on."""
    return slice(start, start + width)


def repeated(width: int, times: int) -> Matrix:
    """Return the weights that write each of `width` columns `times` times in a row."""
    return np.repeat(np.eye(width), times, axis=1)
