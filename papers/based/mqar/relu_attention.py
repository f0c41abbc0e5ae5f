"""Solve MQAR over binary tokens by ReLU scores and two maps of the scores (Based, proposition F.2).

    Z = relu(Q K^T + B)          1 where a query matches a key, with rows w = 2 u - 1 of signs
    Z' = relu(Z W_1 W_2 + 1)     1 up to the first match
    out = Z' W_3 V               the value of the first match, as signs; 0 where there is none

B is 1 - d, as a sum of d products of signs is d or at most d - 2; where a query must not look it is -d, a
mask that the paper leaves out. Keys move one row down, to their values (there, values move up to their
keys). W_1, W_2, W_3 act on the scores of a row, so each is 3 T x 3 T, not d x d: their size grows with the
length.
"""

import numpy as np

from papers.zoology.base_conv import Matrix


def solve(u: Matrix) -> Matrix:
    """Return the answers to `triples.binary_rows`, (3 T, d) both.

    Rows 2, 5, ... have the signs 2 v - 1 of the first match, or zeros; other rows are 0.
    """
    q, k, v = projections(u)
    return first_match(match(q, k)) @ v


def projections(u: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return Q, K (one row down) and V in the queries' and values' rows, each (3 T, d), signs and zeros."""
    signs = 2 * u - 1
    role = np.arange(len(u))[:, None] % 3
    key_above = np.roll(signs, 1, axis=0)
    return np.where(role == 2, signs, 0), np.where(role == 1, key_above, 0), np.where(role == 1, signs, 0)


def match(q: Matrix, k: Matrix) -> Matrix:
    """Return Z, (3 T, 3 T): 1 where a query equals the key of an earlier triple."""
    rows, width = q.shape
    earlier = np.tri(rows, k=-2)  # a query stands one row below its own key
    return np.maximum(q @ k.T - width + earlier, 0)


def first_match(z: Matrix) -> Matrix:
    """Return 1 at the first 1 of each row, (3 T, 3 T); in the last column if a row has none."""
    w_1, w_2, w_3 = maps(len(z))
    until = np.maximum(z @ w_1 @ w_2 + 1, 0)
    return until @ w_3


def maps(size: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return W_1, which sums from each column on, W_2, which subtracts the first, W_3, the next column."""
    w_1, w_3 = np.tri(size), np.eye(size) - np.eye(size, k=-1)
    w_2 = np.eye(size)
    w_2[0] -= 1
    return w_1, w_2, w_3
