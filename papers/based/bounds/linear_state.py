"""Test how many pairs a linear state holds exactly: its rank (Zoology, H.24, in numbers rather than bits).

A state S, d x d_v, is read as S^T q. However it was written, the answers to P keys are K S, of rank at most
d. If the values are P different one-hot rows, the squared errors add up to at least P - rank(K) >= P - d. For
up to d orthonormal keys sums of outer products and the delta rule reach 0. Beyond, both stay above that
bound; the delta rule keeps the newest pair exact, at the cost of the others.
"""

import numpy as np

from papers.zoology.base_conv import Matrix


def outer_products(keys: Matrix, values: Matrix) -> Matrix:
    """S = sum_i k_i v_i^T, (P, d) and (P, d_v) to (d, d_v): linear attention without normaliser."""
    return keys.T @ values


def delta_rule(keys: Matrix, values: Matrix) -> Matrix:
    """S <- S + k (v - S^T k)^T, pair by pair, for keys of length 1: what the state recalls is replaced."""
    state = np.zeros((keys.shape[1], values.shape[1]))
    for key, value in zip(keys, values, strict=True):
        state += np.outer(key, value - key @ state)
    return state


def squared_error(state: Matrix, keys: Matrix, values: Matrix) -> float:
    """Return the squared error of the answers to all keys, summed."""
    return float(np.square(keys @ state - values).sum())


def orthonormal(rng: np.random.Generator, pairs: int, width: int) -> Matrix:
    """Draw random keys, (P, d): the first d orthonormal, the others of length 1."""
    basis = np.linalg.qr(rng.normal(size=(width, width)))[0]
    others = rng.normal(size=(max(pairs - width, 0), width))
    return np.vstack([basis, others / np.linalg.norm(others, axis=1, keepdims=True)])[:pairs]
