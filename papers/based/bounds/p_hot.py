"""Compute degrees for tokens of p one-hot blocks, from binary (b = 2) to one-hot (p = 1) (Based, F.5).

A token of c = b^p is p digits in base b, each one-hot: p b bits; the almost p-hot encoding drops the last
bit of each block (definition F.7). No two variables of a block are ever 1 together, so polynomials can be
block-exclusive: no monomial has two of them (definition F.8). On the almost p-hot encoding a function
is exactly one of those (proposition F.4), with the coefficients below. On the p-hot one it is many, but none
has a smaller degree (proposition F.5). Equality has degree 2 p (lemma F.4), so it takes ceil(log2(2 p))
layers (theorem F.6, which rounds down). MQAR, which multiplies by a value, has 2 p + 1.

Functions are arrays with one axis of b digits for each block, of all tokens it depends on.
"""

from functools import reduce

import numpy as np

from papers.check import EXACT
from papers.zoology.base_conv import Matrix


def encode(tokens: np.ndarray, p: int, base: int, almost: bool = False) -> Matrix:
    """Encode tokens from 0 to base^p - 1 as p blocks, most significant digit first: (m,) to (m, p * base).

    With `almost` the last bit of each block is dropped: (m, p * (base - 1)).
    """
    digits = np.stack(np.unravel_index(tokens, (base,) * p), axis=1)
    bits = np.eye(base)[:, : base - int(almost)][digits]
    return bits.reshape(len(tokens), -1)


def coefficients(values: np.ndarray) -> np.ndarray:
    """Return coefficients of the block-exclusive polynomial over the almost p-hot encoding of `values`.

    They have an axis for each block: index k < b - 1 stands for the block's variable k and the last index for
    none of them. Exact for integers.
    """
    result = values.copy()
    for axis in range(values.ndim):
        view = np.moveaxis(result, axis, 0)
        view[:-1] -= view[-1]
    return result


def degree(values: np.ndarray) -> int:
    """Return the degree of that polynomial: of its monomials, the most blocks with a variable."""
    found = np.abs(coefficients(values)) > EXACT * max(1.0, float(np.abs(values).max()))
    sizes = (np.indices(values.shape) < values.shape[0] - 1).sum(axis=0)
    return int(np.where(found, sizes, 0).max())


def monomials(blocks: int, base: int, almost: bool = False) -> tuple[Matrix, np.ndarray]:
    """Return values of all block-exclusive monomials on all encoded inputs, (b^blocks, monomials); degrees.

    They are in the order of `coefficients`. The rank of the values is the number of columns if and only if
    every function is just one such polynomial.
    """
    block = np.hstack([encode(np.arange(base), 1, base, almost), np.ones((base, 1))])
    degrees = np.append(np.ones(block.shape[1] - 1, dtype=int), 0)
    sizes = reduce(np.add.outer, [degrees] * blocks)
    return reduce(np.kron, [block] * blocks), sizes.reshape(-1)


def lowest_degree(values: np.ndarray, almost: bool = False) -> int:
    """Return the smallest degree of all block-exclusive polynomials with these values, by least squares."""
    columns, sizes = monomials(values.ndim, values.shape[0], almost)
    wanted = values.reshape(-1).astype(np.float64)
    for size in range(values.ndim + 1):
        chosen = columns[:, sizes <= size]
        solution = np.linalg.lstsq(chosen, wanted, rcond=None)[0]
        if np.abs(chosen @ solution - wanted).max() <= EXACT:
            return size
    raise AssertionError("a block-exclusive polynomial of full degree has every value")


def equality(p: int, base: int) -> np.ndarray:
    """Return whether two tokens are the same, (b, ..., b) with 2 p axes."""
    return np.eye(base**p, dtype=int).reshape((base,) * 2 * p)


def recall(p: int, base: int) -> np.ndarray:
    """Return the first bit of MQAR's answer after one pair, over query, key and value: 3 p axes."""
    first_bit = encode(np.arange(base**p), p, base)[:, 0].astype(int)
    return np.multiply.outer(np.eye(base**p, dtype=int), first_bit).reshape((base,) * 3 * p)


def product_of_blocks(first: Matrix, second: Matrix, p: int) -> np.ndarray:
    """Evaluate lemma F.4's polynomial of tokens (m, p (b - 1)): 1 if they are equal, else 0, (m,)."""
    first, second = (tokens.reshape(len(tokens), p, -1) for tokens in (first, second))
    both_last = (1 - first.sum(axis=2)) * (1 - second.sum(axis=2))
    return ((first * second).sum(axis=2) + both_last).prod(axis=1)
