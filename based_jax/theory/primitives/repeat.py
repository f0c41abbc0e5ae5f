"""Columns, or the whole matrix, several times over, in one layer each (Based, propositions F.7 and F.8)."""

import numpy as np

from based_jax.theory.base_conv import Matrix, Stack
from based_jax.theory.basic_layers import convolution, delta, linear
from based_jax.theory.primitives.column_blocks import repeated
from based_jax.validate import expect_divisible


def repeat_columns(shape: tuple[int, int], times: int) -> Stack:
    """Each of the first D / `times` columns, `times` times in a row; what the others hold does not matter.

    W[i, j] = 1 where floor(j / times) = i. The proposition prints the transpose, which adds columns up.

    Args:
        shape: (N, D) of the inner matrix.
        times: r, a divisor of D.

    Raises:
        ValueError: it is none.
    """
    expect_divisible("the inner width", shape[1], "times", times)
    width = shape[1] // times
    return linear(shape, np.pad(repeated(width, times), ((0, shape[1] - width), (0, 0))))


def repeat_matrix(shape: tuple[int, int], times: int) -> Stack:
    """The first N / `times` rows, below each other `times` times; the other rows have to be 0.

    Args:
        shape: (N, D) of the inner matrix.
        times: r, a divisor of N.

    Raises:
        ValueError: it is none.
    """
    expect_divisible("the inner length", shape[0], "times", times)
    return convolution(shape, delta(shape[0], *range(0, shape[0], shape[0] // times)))


def columns_repeated(u: Matrix, times: int) -> Matrix:
    """What `repeat_columns` computes, of the first columns: (N, d) to (N, d r)."""
    return np.repeat(u, times, axis=1)


def matrix_repeated(u: Matrix, times: int) -> Matrix:
    """What `repeat_matrix` computes, of the first rows: (n, D) to (n r, D)."""
    return np.tile(u, (times, 1))
