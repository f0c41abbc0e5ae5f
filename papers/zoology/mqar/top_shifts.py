"""Solve MQAR by convolutions whose filters depend on the data (Zoology, theorem H.38; 4.5 in the text).

    y = Q * (h_k conv K)        z = (y 1 1^T) * (h_v conv V)        out = sum of z over the shifts

for one-hot rows of triples and t shifts s from queries back to keys. Each shift has its own rows, and all
are done at once: five layers, for any t, on t blocks of rows.

The shifts come from the correlation of keys with queries. The autocorrelation of the sequence, which the
paper names, also peaks where keys meet keys, values values, and queries their own key. A shift between key
and query is 2 mod 3, so in a query's row every tap finds a key (or a value, one row later): only Q is masked.
A block has twice the sequence's rows. With fewer, rows shifted out of one block would reach the queries of
the next, and these would find keys that come after them.

The shifts are chosen from the whole sequence, so an answer may depend on what comes later.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.basic_layers import delta, masked_convolution
from papers.zoology.mqar.triples import Triples, one_hot_rows
from papers.zoology.primitives.column_blocks import Part, block, convolved, gated, rewrite


def correlation(u: Matrix) -> np.ndarray:
    """Count the queries of `triples.one_hot_rows` that match the key D triples back, (T,), D = 0..T - 1."""
    keys, queries = u[0::3], u[2::3]
    return np.array([np.sum(queries[d:] * keys[: len(keys) - d]) for d in range(len(keys))])


def top_shifts(u: Matrix, count: int) -> np.ndarray:
    """Return the t = `count` shifts with the most matches, in rows from the query back to its key.

    A query's own key (distance 0) is left out; distances without a match fill up the list.
    """
    distances = 1 + np.argsort(-correlation(u)[1:], kind="stable")[:count]
    return 3 * distances + 2


def solver(rows: int, tokens: int, shifts: np.ndarray) -> Stack:
    """Return the five layers for given shifts; the input and the answers are (rows, tokens), 3 T x c."""
    stride = 2 * rows
    starts = stride * np.arange(len(shifts))
    shape = (stride * len(shifts), 3 * tokens)
    values, queries, keys = (block(i * tokens, tokens) for i in range(3))
    own, eye = delta(shape[0]), np.eye(tokens)

    row = np.arange(shape[0])[:, None]
    asks = ((row % stride < rows) & (row % 3 == 2)).astype(np.float64)

    def moved(columns: slice, lags: np.ndarray, mask: Matrix | float = 1.0) -> Part:
        return convolved(columns, delta(shape[0], *lags.tolist()), mask)

    copy = rewrite(shape, Part(queries, values, eye), Part(keys, values, eye))
    moves = (moved(values, starts + shifts - 1), moved(queries, starts, asks), moved(keys, starts + shifts))
    shift = rewrite(shape, *moves)
    match = rewrite(shape, gated(queries, keys, eye, own))
    read = rewrite(shape, gated(values, queries, np.ones_like(eye), own))
    back = delta(shape[0], *(-starts % shape[0]).tolist())
    gather = masked_convolution(shape, back, (row < rows).astype(np.float64), circular=True)
    return copy.then(shift, match, read, gather)


def solve(triples: Triples, count: int) -> Matrix:
    """Return the answers by the top `count` shifts, one-hot in rows 2, 5, ..., (3 T, c).

    Exact where the matches lie at no more than `count` distances; of several matches the sum.
    """
    u = one_hot_rows(triples)
    return solver(len(u), triples.tokens, top_shifts(u, count))(u)
