"""Compute degrees: what L layers of BaseConv cannot compute (Based, F.4.4: lemmas F.1, F.2, theorem F.5).

A function on {0, 1}^n is exactly one multilinear polynomial, and its coefficients are the differences of the
values along every axis (the Moebius transform). A layer at most doubles the degree, so a function of degree
D takes ceil(log2 D) layers. MQAR's answer to a query of d bits has degree 2 d + 1.

That holds for one pair, or if the values of all matching keys are added. If a key may be repeated and the
value of one match is the answer, i pairs have a degree of at least d i, whichever match it is: if all values
and the query are ones, the answer is an OR of i ANDs. For the first match it is 2 d ceil(i / 2) + 1. So the
layers then grow with log2 N, which the paper does not state. Theorem F.7 has fewer as no key of its inputs
matches twice.
"""

import numpy as np

from papers.check import EXACT
from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.basic_layers import delta, one_layer


def points(variables: int) -> Matrix:
    """Return {0, 1}^n, (2^n, n), in lexicographic order."""
    return np.indices((2,) * variables).reshape(variables, 2**variables).T.astype(np.float64)


def coefficients(values: np.ndarray) -> np.ndarray:
    """Return the coefficients of multilinear polynomials with values (2^n, ...) in the order of `points`.

    Row i belongs to the product of the variables that are 1 in row i of `points`. Exact for integers.
    """
    result = values.copy()
    for variable in range(_variables(values)):
        pairs = result.reshape(-1, 2, 2**variable, *values.shape[1:])
        pairs[:, 1] -= pairs[:, 0]
    return result


def degree(values: np.ndarray) -> int:
    """Return the largest degree of the polynomials with these values; that of a constant is 0.

    A coefficient counts if it is larger than the rounding of 2^n values.
    """
    found = np.abs(coefficients(values)).reshape(len(values), -1).max(axis=1)
    counted = found > EXACT * max(1.0, float(np.abs(values).max()))
    return int(points(_variables(values)).sum(axis=1)[counted].max(initial=0))


def outputs(stack: Stack, length: int, width: int) -> Matrix:
    """Return a stack on all of {0, 1}^(length x width), (2^n, length, width) with n = length * width."""
    return np.stack([stack(u.reshape(length, width)) for u in points(length * width)])


def product(layers: int) -> Stack:
    """Return the stack whose last row, of 2^L, is the product of all rows: it has the largest degree.

    Layer l multiplies the rows with those 2^l above.
    """
    shape, ones = (2**layers, 1), np.ones((1, 1))
    steps = [one_layer(shape, ones, filters=delta(shape[0], 2**i)) for i in range(layers)]
    return Stack(shape).then(*steps)


def layers_for(degree: int) -> int:
    """Return the smallest L with 2^L >= degree; theorem F.5 applies it to the degree 2 d + 1.

    The paper states log2(2 d), one less where d is a power of two; its proof excludes L = log2(2 d) as well.
    """
    return (degree - 1).bit_length()


def recall(bits: int, pairs: int, first: bool = False) -> np.ndarray:
    """Return one bit of MQAR's answer to one query after i = `pairs` pairs, on all Boolean inputs.

    Keys have d = `bits` bits and values one. If `first`, the first key that matches counts; else the values
    of all that match are added. Returns (2^n,) integers, n = d + i (d + 1), in the order of `points` of
    query, keys, values.
    """
    inputs = points(bits + pairs * (bits + 1)).astype(int)
    query, keys, values = np.split(inputs, [bits, bits * (pairs + 1)], axis=1)
    match = (query[:, None] == keys.reshape(-1, pairs, bits)).all(axis=2)
    if first:
        match &= np.cumsum(match, axis=1) == 1
    return (match * values).sum(axis=1)


def recall_degree(bits: int, pairs: int, first: bool = False) -> int:
    """Return the degree of `recall`: 2 d + 1, and 2 d ceil(i / 2) + 1 if the first match counts."""
    return 2 * bits * (-(-pairs // 2) if first else 1) + 1


def _variables(values: np.ndarray) -> int:
    return len(values).bit_length() - 1
