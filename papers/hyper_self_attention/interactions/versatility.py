"""Test whether data can identify interactions: ranks of counts (Ustaomeroglu & Qu 2025, section 4).

For a symbol a, S_a has a row of counts s for each sequence that holds a. Data are versatile if every S_a has
full column rank (assumption 4.2). If the targets are sums of interactions, a layer that fits versatile data
has their transform, and is right for sequences of every length (theorems 4.6 and 4.8). For HyperAttention
the counts are those of tuples of symbols, and the matrices are called Z_a (assumption G.10).
"""

from string import ascii_lowercase
from typing import NamedTuple

import numpy as np

from based_jax.typing import Float, Int
from papers.hyper_self_attention.interactions.data import counts
from papers.hyper_self_attention.interactions.layers import Order, tuples


class Versatility(NamedTuple):
    """Ranks of the count matrices of each symbol."""

    ranks: Int[np.ndarray, " S"]  # of S_a or Z_a; 0 for a symbol that no sequence holds
    columns: int  # full rank: S, or the number of tuples of symbols
    squared_gap: float  # zeta^2, the smallest squared singular value of all; 0 if data are not versatile

    @property
    def versatile(self) -> bool:
        """Whether every rank is full."""
        return bool((self.ranks == self.columns).all())


def versatility(
    x: Int[np.ndarray, "count L"], size: int, keys: int = 1, order: Order = "ordered"
) -> Versatility:
    """Return the ranks of the counts in sequences `x`, for each of `size` symbols, and the gap.

    They come from eigenvalues of Gram matrices, which hold integers and so are exact. With the order "all",
    permuted tuples have equal counts: for two symbols or more no data are versatile.
    """
    present = counts(x, size) > 0
    rows = tuple_counts(x, size, keys, order).reshape(len(x), -1).astype(float)
    held = (rows[present[:, symbol]] for symbol in range(size))
    squares = np.stack([np.linalg.eigvalsh(s.T @ s) for s in held])
    floor = np.finfo(float).eps * rows.shape[1] * np.maximum(squares[:, -1:], 1)
    ranks = (squares > floor).sum(axis=1)
    full = (ranks == rows.shape[1]).all()
    return Versatility(ranks, rows.shape[1], float(squares.min()) if full else 0.0)


def tuple_counts(
    x: Int[np.ndarray, "... L"], size: int, keys: int = 2, order: Order = "ordered"
) -> Int[np.ndarray, "..."]:
    """Count how many tuples (j, k, ...) of entities are the symbols (a, b, ...) (Gamma of lemma G.8).

    Returns `keys` axes of `size` after the leading axes of `x`; with 1 it is `data.counts`.
    """
    if keys == 1:
        return counts(x, size)
    entity, symbol = ascii_lowercase[:keys], ascii_lowercase[8 : 8 + keys]
    held = np.eye(size)[x]
    each = ",".join(f"...{j}{a}" for j, a in zip(entity, symbol, strict=True))
    counted = tuples(x.shape[-1], keys, order).astype(float)
    result = np.einsum(f"{entity},{each}->...{symbol}", counted, *[held] * keys, optimize=True)
    return np.rint(result).astype(int)


def second_moment(
    size: int, length: int, probabilities: Float[np.ndarray, " S"] | None = None
) -> Float[np.ndarray, "S S"]:
    """Return E[s s^T] of the counts s of `length` independent symbols: L diag(p) + L (L - 1) p p^T.

    Theorem E.2 asks for a covariance with positive eigenvalues. No single length has one: counts sum to L, so
    the covariance L (diag(p) - p p^T) is singular. The argument only needs the second moment.
    """
    p = np.full(size, 1 / size) if probabilities is None else np.asarray(probabilities, float)
    return length * np.diag(p) + length * (length - 1) * np.outer(p, p)
