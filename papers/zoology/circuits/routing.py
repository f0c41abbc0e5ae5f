"""Move values between rows by few moves, each by one distance up or down.

A move of n = 2^r rows is an array: row i takes the value of row ``move[i]``, which is i, i - k or i + k for
the move's k: a masked sum of three shifts. Those of a permutation are butterfly factors of entries 0 and 1.

    permutations   2 r - 1 moves, the network of Benes: the first and last move pair the rows i and i + n/2,
                   and between them both halves permute at the same time
    any map        copies of a value stand below each other first: permute, copy in ceil(log2 of the most
                   copies) doublings, permute again
"""

import numpy as np

Move = np.ndarray
"""(n,), integers; -1 takes 0."""


def route(sources: Move) -> list[Move]:
    """Return the moves of any map of n = 2^r >= 2 rows, 4 r - 2 and one for each doubling.

    Each row takes the value of the row that `sources` has for it, or 0 for -1.
    """
    taken = np.flatnonzero(sources >= 0)
    taken = taken[np.argsort(sources[taken], kind="stable")]
    values, first, copies = np.unique(sources[taken], return_index=True, return_counts=True)
    moves = permute(_complete(first, values, len(sources)))
    moves += _copy(first, copies, len(sources))
    moves += permute(_complete(taken, np.arange(len(taken)), len(sources)))
    moves[-1] = np.where(sources >= 0, moves[-1], -1)
    return moves


def permute(order: Move) -> list[Move]:
    """Return the 2 r - 1 moves of a permutation of n = 2^r >= 2 rows: row i takes ``order[i]``'s value."""
    size = len(order)
    half = size // 2
    if size == 2:
        return [order]
    rows, side = np.arange(size), _sides(order)
    there, inner = np.empty(size, int), np.empty((2, half), int)
    there[side * half + order % half] = order
    inner[side, rows % half] = order % half
    back = side * half + rows % half
    halves = zip(*map(permute, inner), strict=True)
    both = [np.concatenate([upper, lower + half]) for upper, lower in halves]
    return [there, *both, back]


def _sides(order: Move) -> np.ndarray:
    """For each row, return its value's half: rows i and i + n/2 differ, as do their values."""
    size = len(order)
    reader = np.argsort(order)
    side = np.full(size, -1)
    for row in range(size):
        while side[row] < 0:
            partner = (row + size // 2) % size
            side[row], side[partner] = 0, 1
            row = reader[(order[partner] + size // 2) % size]  # it must not follow the partner's value
    return side


def _copy(first: np.ndarray, copies: np.ndarray, size: int) -> list[Move]:
    """Doublings: every value in the row `first` is copied to as many rows from there on.

    After each, the rows at offsets below 2 * reach hold the copy; those further down may hold any value.
    """
    offset = np.zeros(size, int)
    for row, count in zip(first, copies, strict=True):
        offset[row : row + count] = np.arange(count)
    rows, doublings = np.arange(size), int(offset.max()).bit_length()
    return [np.where(offset >= 2**k, rows - 2**k, rows) for k in range(doublings)]


def _complete(rows: np.ndarray, sources: np.ndarray, size: int) -> Move:
    """Return a permutation in which `rows` take `sources`, and the other rows what is left, in order."""
    order = np.full(size, -1)
    order[rows] = sources
    order[order < 0] = np.setdiff1d(np.arange(size), sources)
    return order
