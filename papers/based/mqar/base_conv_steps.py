"""Solve MQAR over one-hot tokens by binary codes: the eight steps of Based, theorem F.7, as matrices.

    answer = (C * (Q K^T)) V        Q, K, V: N x d, rows one-hot or zero; C: lower triangle of 1s

It is computed without a product of matrices, in O(N log N) numbers a row. Each key writes its position's
code under its token, the query reads the code of the one key that matches, and a one-hot row replaces the
code. The same again from positions to values. `base_conv.solver` turns this into layers.

Every query may have at most one match. The mask is on the diagonal too, as in F.6, so a row's query sees
the row's own key.
"""

import numpy as np

from papers.zoology.base_conv import Matrix
from papers.zoology.primitives.one_hot import code_width, codes, one_hot_rows


def attention(q: Matrix, k: Matrix, v: Matrix, strict: bool = False) -> Matrix:
    """Compute the answer directly, (N, d); if `strict` a query sees only rows above its own, as in MQAR."""
    return np.tril(q @ k.T, -int(strict)) @ v


def solve(q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    """Compute `attention` by the eight steps, exact if every query has at most one match."""
    length, tokens = q.shape
    found = matches(q, positions_by_token(k))
    selected = one_hot_rows(numbers(found), length)  # step 3, L = C * (Q K^T)
    values = regroup(value_codes(v), length)
    return one_hot_rows(numbers(read_values(selected, values)), tokens)  # step 8


def positions_by_token(k: Matrix) -> Matrix:
    """Step 1: K', (N, d b). Block c of row i is the code of the position <= i that has key c, or 0."""
    length, tokens = k.shape
    written = np.repeat(k, code_width(length), axis=1) * np.tile(codes(length), (1, tokens))
    return np.cumsum(written, axis=0)


def matches(q: Matrix, positions: Matrix) -> Matrix:
    """Step 2: M, (N, b). Row i is the code of the position that the query of row i matches, or 0."""
    bits = positions.shape[1] // q.shape[1]
    return sum_blocks(np.repeat(q, bits, axis=1) * positions, bits)


def value_codes(v: Matrix) -> np.ndarray:
    """Steps 4 and 5: V', (N b',), bit by bit: entry t N + n is bit t of the value of row n."""
    return (v @ codes(v.shape[1])).T.reshape(-1)


def regroup(column: np.ndarray, length: int) -> np.ndarray:
    """Step 6: a row of V1, (N b',), value by value: entry n b' + t is bit t of the value of row n.

    As V' W with a permutation: W[i, j] = 1 where i = (j mod b') N + floor(j / b').
    """
    bits = len(column) // length
    j = np.arange(len(column))
    permutation = (np.arange(len(column))[:, None] == j % bits * length + j // bits).astype(np.float64)
    return column @ permutation


def read_values(selected: Matrix, values: np.ndarray) -> Matrix:
    """Steps 7 and 8: (N, b'). Row i is the code of the value at the position that row i selects, or 0."""
    bits = len(values) // selected.shape[1]
    return sum_blocks(np.repeat(selected, bits, axis=1) * values, bits)


def sum_blocks(u: Matrix, width: int) -> Matrix:
    """Return the sum of the blocks of `width` columns: (N, m width) to (N, width)."""
    return u.reshape(len(u), -1, width).sum(axis=1)


def numbers(bits: Matrix) -> np.ndarray:
    """Convert codes to numbers: (N, b) to (N,)."""
    return bits @ 2.0 ** np.arange(bits.shape[1])


def instance(rng: np.random.Generator, length: int, tokens: int) -> tuple[Matrix, Matrix, Matrix]:
    """Draw one-hot q, k, v, (N, d) each, without two equal keys.

    Some rows have no key (all do once the tokens are used up). Most queries ask for a key of their own or an
    earlier row, the others for any token or none, so some have no match.
    """
    tokens_once = np.append(rng.permutation(tokens) + 1, np.zeros(length, int))[:length]
    keys = rng.permutation(np.where(rng.random(length) < 0.8, tokens_once, 0))
    earlier = keys[rng.integers(0, np.arange(length) + 1)]
    anything, values = rng.integers(0, tokens + 1, size=(2, length))
    queries = np.where(rng.random(length) < 0.7, earlier, anything)
    q, k, v = (one_hot_rows(row, tokens) for row in (queries, keys, values))
    return q, k, v
