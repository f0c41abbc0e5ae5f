"""Solve MQAR by two layers of attention without softmax (Zoology, proposition H.27; 4.3 in the text).

    layer(u) = ((u W_Q) (u W_K)^T + B) u W_V, masked to the past; the second layer sees u + layer_1(u)

Tokens are one-hot, keys, values and queries in a block of columns each (`triples.one_hot_blocks`). The first
layer moves keys one row down, to their values; the second compares queries with keys. The paper moves values
up to their keys instead, which reads the next row, and has no mask on the second layer: there a query also
finds its own key and later ones. Delaying the second layer by two rows suffices, as a query is one row below
its own key and value then.
"""

from dataclasses import dataclass

import numpy as np

from papers.zoology.base_conv import Matrix


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """Attention with a bias on its scores instead of softmax."""

    w_q: Matrix  # (d, d), like the next two
    w_k: Matrix
    w_v: Matrix
    bias: Matrix  # B, (N, N), fixed as in ALiBi, not a parameter
    delay: int = 0  # row i sees rows up to i - delay

    def __call__(self, u: Matrix) -> Matrix:
        return self.weights(u) @ (u @ self.w_v)

    def weights(self, u: Matrix) -> Matrix:
        """Return the weight of row j for row i, (N, N)."""
        return np.tril((u @ self.w_q) @ (u @ self.w_k).T + self.bias, -self.delay)

    @property
    def parameters(self) -> int:
        """Number of parameters, 3 d^2."""
        return self.w_q.size + self.w_k.size + self.w_v.size


def layers(count: int, tokens: int) -> tuple[AttentionLayer, AttentionLayer]:
    """Return both layers for T = `count` triples of c tokens: W_Q, W_K, W_V are (3 c, 3 c), for any T."""
    rows, none = 3 * count, np.zeros((3 * tokens, 3 * tokens))
    key, value, query = range(3)

    def between(source: int, target: int) -> Matrix:
        return np.kron(np.outer(np.arange(3) == source, np.arange(3) == target), np.eye(tokens))

    move = AttentionLayer(none, none, between(key, key), bias=np.eye(rows, k=-1))
    parts = (between(query, key), between(key, key), between(value, key))
    return move, AttentionLayer(*parts, bias=np.zeros((rows, rows)), delay=2)


def solve(u: Matrix) -> Matrix:
    """Return the answers to `triples.one_hot_blocks`, (3 T, 3 c) -> (3 T, 3 c).

    Row 3 i + 2 is [v_j : 0 : 0], the sum over all keys that match the query i, other rows are 0.
    """
    move, recall = layers(len(u) // 3, u.shape[1] // 3)
    return recall(u + move(u))
