"""Layers that rewrite some blocks of columns and carry the others along.

A BaseConv layer multiplies columns: what W reads, from anywhere, and what the convolution makes of the
column itself. So a wide inner matrix can hold several operands side by side, and a layer that works on one
of them passes the others through with the identity in W, filters 0 and b2 = 1. Operands that are stacked in
rows have to be moved out of the convolution's way instead (Based, F.13, "remember").
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from based_jax.theory.base_conv import Layer, Matrix, Stack
from based_jax.theory.basic_layers import delta
from based_jax.validate import expect


class Part(NamedTuple):
    """What becomes of some columns: (u[:, read] W + b1) * (h conv u[:, columns] + b2).

    Without filters and b2 it is the linear map alone.

    Attributes:
        columns: which are rewritten.
        read: the columns that W reads.
        weights: W, from those to these.
        bias_1: b1, anything that broadcasts to (N, number of columns), as the two below.
        filters: h.
        bias_2: b2.
    """

    columns: slice
    read: slice
    weights: Matrix
    bias_1: Matrix | float = 0.0
    filters: Matrix | float = 0.0
    bias_2: Matrix | float = 1.0


def rewrite(shape: tuple[int, int], *parts: Part) -> Stack:
    """All parts in one layer; columns that no part names are carried.

    Args:
        shape: (N, D) of the inner matrix.
        parts: of distinct columns.

    Raises:
        ValueError: a part's columns do not fit.
    """
    weights = np.eye(shape[1])
    bias_1, filters, bias_2 = np.zeros(shape), np.zeros(shape), np.ones(shape)
    for part in parts:
        for name, columns in (("columns", part.columns), ("read", part.read)):
            expect(columns.stop <= shape[1], name, columns, f"within {shape[1]} columns")
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


def multiply_blocks(shape: tuple[int, int], *runs: Run) -> Stack:
    """The product of a run's blocks, entry by entry, in its first block; any number of runs at once.

    A binary tree in place: a block is multiplied by the one `step` further right, which W reads. Of 0s and 1s
    it is AND. Needs ceil(log2 count) layers, of the longest run; the other blocks end as scratch.

    Args:
        shape: (N, D) of the inner matrix.
        runs: the blocks to multiply.
    """
    own = delta(shape[0])
    stack, step = Stack(shape), 1
    while step < max(run.count for run in runs):
        stack = stack.then(rewrite(shape, *(part for run in runs for part in _pairs(run, step, own))))
        step *= 2
    return stack


def _pairs(run: Run, step: int, own: Matrix) -> Iterable[Part]:
    for left in range(0, run.count - step, 2 * step):
        yield Part(
            columns=block(run.start + left * run.width, run.width),
            read=block(run.start + (left + step) * run.width, run.width),
            weights=np.eye(run.width),
            filters=own,
            bias_2=0.0,
        )


def block(start: int, width: int) -> slice:
    """The `width` columns from `start` on."""
    return slice(start, start + width)


def repeated(width: int, times: int) -> Matrix:
    """The weights that write each of `width` columns `times` times in a row."""
    return np.repeat(np.eye(width), times, axis=1)
