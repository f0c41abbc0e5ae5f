"""Compute Based's linear attention in five BaseConv layers (Based, definition F.3 and proposition F.1).

    z = (Qbar Kbar^T) V,   Xbar = [1, X, X o X],   (X o X)[:, m k + n] = X[:, m] * X[:, n]
    causal: z_i = sum_{j <= i} (qbar_i . kbar_j) v_j;   neither scaled nor normalised

with k = d' channels of queries and keys, F = 1 + k + k^2 features and d channels of u and v. The sums
S_fj = sum_i kbar_if v_ij stand in F d columns; k^2 columns for each of Q o Q and K o K and d for u follow:

    copy      v_j into column (f, j);  q_n and k_n into column (m, n)
    squares   q_m q_n and k_m k_n: the projection repeats the first factor, as in the paper
    gate      kbar_f v_j
    gate      qbar_f S_fj: the convolution's half sums over the past, or, wrapped around, over all rows
    sum       over f: the blocks of d columns

Without causality, as in the paper, that convolution has to be circular: acyclic ones, which Based's notation
means, never look ahead. The proposition allows O(log^2(N d)) layers, for the sums as a tree of
additions; a filter of ones sums all rows at once, and a projection all features. Its inner matrix,
O(N (d + k^2)) x O(max(d, k^2)), is taller and narrower; these N rows of F d + 2 k^2 + d columns have no more
entries, up to a constant.

`square` weighs the features of X o X. With 1 / sqrt(2), and projections divided by k^(1/4), the features are
Based's: the Taylor series of exp(q . k / sqrt(k)). To normalise, let u and v have a column of ones: that
column of z is then the divisor of the others.
"""

from dataclasses import dataclass, replace

import numpy as np

from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.basic_layers import delta
from papers.zoology.primitives.column_blocks import Part, block, gated, repeated, rewrite


@dataclass(frozen=True, eq=False)
class LinearAttention:
    """One head."""

    queries: Matrix  # W_Q, (d, k)
    keys: Matrix  # W_K, (d, k)
    values: Matrix  # W_V, (d, d)
    causal: bool = True  # whether a token sees only itself and earlier ones; the paper: all
    square: float = 1.0  # weight of the squares among the features

    def features(self, x: Matrix) -> Matrix:
        """Return [1, X, square X o X]: (N, k) to (N, 1 + k + k^2)."""
        squares = x[:, :, None] * x[:, None, :]
        return np.concatenate([np.ones((len(x), 1)), x, self.square * squares.reshape(len(x), -1)], axis=1)

    def __call__(self, u: Matrix) -> Matrix:
        """Compute the definition: (N, d) to (N, d)."""
        scores = self.features(u @ self.queries) @ self.features(u @ self.keys).T
        return (np.tril(scores) if self.causal else scores) @ (u @ self.values)


def linear_attention_by_columns(attention: LinearAttention, length: int) -> Stack:
    """Return the head for N = `length` tokens in 5 layers on N x (F d + 2 k^2 + d)."""
    width, size = attention.queries.shape
    features = 1 + size + size**2
    sums, first = block(0, features * width), block(0, width)
    q_squares, u = block(sums.stop, size**2), block(sums.stop + size**2, width)
    k_squares = block(u.stop, size**2)
    shape = (length, k_squares.stop)
    here, everywhere = delta(length), np.ones((length, 1))

    copied = rewrite(
        shape,
        Part(sums, first, np.tile(attention.values, (1, features))),
        Part(q_squares, first, np.tile(attention.queries, (1, size))),
        Part(u, first, np.eye(width)),
        Part(k_squares, first, np.tile(attention.keys, (1, size))),
    )
    squared = rewrite(
        shape,
        gated(q_squares, u, attention.queries @ repeated(size, size), here),
        gated(k_squares, u, attention.keys @ repeated(size, size), here),
    )
    # Feature f is repeated d times, over the block f: the constant in the bias, the others in W.
    each = repeated(features, width)
    constant, linear, square = np.split(each, [1, 1 + size])
    square = attention.square * square
    k_weights = np.concatenate([attention.keys @ linear, square])
    q_weights = np.concatenate([square, attention.queries @ linear])
    weighed = rewrite(shape, gated(sums, slice(u.start, k_squares.stop), k_weights, here, constant))
    read = rewrite(shape, gated(sums, slice(q_squares.start, u.stop), q_weights, everywhere, constant))
    if not attention.causal:
        read = Stack(shape, tuple(replace(layer, circular=True) for layer in read.layers))
    added = rewrite(shape, Part(first, sums, np.tile(np.eye(width), (features, 1))))
    return copied.then(squared, weighed, read, added)
