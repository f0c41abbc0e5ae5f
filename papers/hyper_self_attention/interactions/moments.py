"""Compute squared errors of sequences, and the moments of the data that their gradients need.

    loss = 1/B sum_n sum_i (y_i - sum_b T[x_i, b] z_n[b])^2

with z the counts of a sequence's symbols, or of tuples of symbols for HyperAttention. As a function of the
transform T the loss is one quadratic for each symbol a, whose matrix G_a = sum z z^T and vector sum y z run
over all entities equal to a: a gradient costs S matrix-vector products, for any number of sequences.
"""

from typing import NamedTuple

import numpy as np

from based_jax.typing import Float, Int
from papers.hyper_self_attention.interactions.data import counts
from papers.hyper_self_attention.interactions.layers import Order
from papers.hyper_self_attention.interactions.versatility import tuple_counts


class Moments(NamedTuple):
    """Moments of counts z and targets y; F = S for self-attention, S^(n-1) for HyperAttention of order n."""

    gram: Float[np.ndarray, "S F F"]  # G_a, sum of z z^T over the entities equal to a: integers, so exact
    cross: Float[np.ndarray, "S F"]  # sum of y z over the entities equal to a
    sequences: int  # B

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue of all G_a: at least the zeta^2 of `versatility`, above 0 if that is."""
        return float(np.linalg.eigvalsh(self.gram)[:, 0].min())


def moments(
    x: Int[np.ndarray, "B L"], y: Float[np.ndarray, "B L"], size: int, keys: int = 1, order: Order = "ordered"
) -> Moments:
    """Return moments of sequences `x` of symbols and a target `y` for each entity; float64."""
    held = counts(x, size)
    cells = size * np.arange(len(x))[:, None] + x
    sums = np.bincount(cells.ravel(), y.ravel(), minlength=held.size).reshape(held.shape)
    z = tuple_counts(x, size, keys, order).reshape(len(x), -1).astype(float)
    width = z.shape[1]
    gram, cross = np.empty((size, width, width)), np.empty((size, width))
    for symbol in range(size):
        chosen = np.flatnonzero(held[:, symbol])
        rows = z[chosen]
        gram[symbol] = rows.T @ (held[chosen, symbol, None] * rows)
        cross[symbol] = sums[chosen, symbol] @ rows
    return Moments(gram, cross, len(x))


def squared_error(outputs: Float[np.ndarray, "B L"], y: Float[np.ndarray, "B L"]) -> float:
    """Return the paper's MSE: squared differences summed over the L entities, averaged over the sequences."""
    return float(((np.asarray(outputs, np.float64) - y) ** 2).sum(axis=-1).mean())
