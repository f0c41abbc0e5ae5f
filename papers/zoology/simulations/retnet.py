"""Compute RetNet in four BaseConv layers, for any length (Zoology, algorithm 6 and corollary H.22).

    S_n = gamma S_(n-1) + a_n^T v_n,   out_n = c_n S_n;   A, C, V = u W_A, u W_C, u W_V     (recurrent)
    Out = ((C A^T) * D) V,   D[n, i] = gamma^(n-i) for i <= n                                (parallel)

The state is a convolution: S_n = sum_i gamma^(n-i) a_i^T v_i, entry by entry. In d^2 columns, with u kept in
d more, the layers are

    copy      v_j into column (i, j)
    gate      a_i v_j: the projection repeats a_i over the block i
    gate      c_i S_ij: the same with c_i, and the filter gamma^n on the other half
    sum       over i: the blocks of d columns

The corollary counts the layers of a circuit that computes the states one after another, O(N log d), where
four suffice. Its O(N d) parameters are those of a single layer on N x d (proposition H.6), not of all of
them; here a layer on d^2 + d columns has (d^2 + d)^2 + 3 N (d^2 + d).
"""

from dataclasses import dataclass

import numpy as np

from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.basic_layers import delta
from papers.zoology.primitives.column_blocks import Part, block, gated, repeated, rewrite


@dataclass(frozen=True, eq=False)
class RetNet:
    """A head of retention."""

    keys: Matrix  # W_A, (d, d)
    queries: Matrix  # W_C, (d, d)
    values: Matrix  # W_V, (d, d)
    decay: float  # gamma

    def __call__(self, u: Matrix) -> Matrix:
        """Compute the definition, token by token: (N, d) to (N, d)."""
        state, out = np.zeros_like(self.keys), np.zeros_like(u)
        for n, token in enumerate(u):
            state = self.decay * state + np.outer(token @ self.keys, token @ self.values)
            out[n] = token @ self.queries @ state
        return out

    def parallel(self, u: Matrix) -> Matrix:
        """Compute the same from all pairs of tokens."""
        ages = np.arange(len(u))[:, None] - np.arange(len(u))
        weights = np.where(ages >= 0, self.decay ** np.maximum(ages, 0), 0)
        return ((u @ self.queries) @ (u @ self.keys).T * weights) @ (u @ self.values)


def retnet_by_columns(retnet: RetNet, length: int) -> Stack:
    """Return the head for N = `length` tokens in 4 layers on N x (d^2 + d)."""
    width = len(retnet.keys)
    shape = (length, width**2 + width)
    products, u, first = block(0, width**2), block(width**2, width), block(0, width)
    each = repeated(width, width)
    decay = retnet.decay ** np.arange(length)[:, None]
    copied = rewrite(
        shape, Part(products, first, np.tile(retnet.values, (1, width))), Part(u, first, np.eye(width))
    )
    outer = rewrite(shape, gated(products, u, retnet.keys @ each, delta(length)))
    read = rewrite(shape, gated(products, u, retnet.queries @ each, decay))
    added = rewrite(shape, Part(first, products, np.tile(np.eye(width), (width, 1))))
    return copied.then(outer, read, added)
