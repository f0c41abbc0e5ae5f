"""Decide equality with a solver of MQAR, with the same layers (Based, proposition F.3).

Two tokens u_1, u_2 become two rows, each with its token as key and query and one fixed token as the value:
the second query finds that value exactly if the tokens are equal. So lower bounds for equality hold for
MQAR (corollary F.2).

It takes the strict mask of MQAR's definition. With the mask of theorem F.7, on the diagonal too, the second
query always finds its own key.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Stack


def equal(solver: Stack, first: np.ndarray, second: np.ndarray, value: np.ndarray) -> bool:
    """Return whether two tokens are equal, by a stack from [Q | K | V], (2, 3 d), to MQAR's answers, (2, d).

    The stack has a strict mask; the tokens, (d,), are encoded as it has them, and `value` is any but 0.
    """
    answers = solver(instance(first, second, value), (2, len(value)))
    return bool((answers[1] == value).all())


def instance(first: np.ndarray, second: np.ndarray, value: np.ndarray) -> Matrix:
    """Return the rows (u_1, u_1, value) and (u_2, u_2, value) of [Q | K | V], (2, 3 d)."""
    return np.stack([np.concatenate([token, token, value]) for token in (first, second)])


def mistakes(solver: Stack, tokens: Matrix, value: np.ndarray) -> int:
    """Return how many of all c^2 pairs of tokens, (c, d), are decided wrongly."""
    return sum(
        equal(solver, first, second, value) != (i == j)
        for i, first in enumerate(tokens)
        for j, second in enumerate(tokens)
    )
