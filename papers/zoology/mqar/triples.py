"""Define MQAR as in the theory: triples of key, value and query (Zoology, H.7).

    rows 0, 1, 2, 3, ... carry k_0, v_0, q_0, k_1, ...

The query q_i asks for the value of a key k_j with j < i; its own key does not count. If several keys
match, the direct answer is the value of the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from papers.zoology.base_conv import Matrix
from papers.zoology.primitives.one_hot import binary

NONE = -1
"""The answer to a query that no earlier key matches."""


@dataclass(frozen=True, eq=False)
class Triples:
    """T triples of tokens 0 ... c - 1, each array (T,) integer."""

    keys: np.ndarray
    values: np.ndarray
    queries: np.ndarray
    tokens: int  # c

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def rows(self) -> np.ndarray:
        """The tokens k_0, v_0, q_0, k_1, ..., (3 T,)."""
        return np.stack([self.keys, self.values, self.queries], axis=1).reshape(-1)

    @property
    def matches(self) -> np.ndarray:
        """Whether query i asks for key j, (T, T) bool, j < i."""
        return np.tril(self.queries[:, None] == self.keys, -1)

    @property
    def answers(self) -> np.ndarray:
        """The value of the first key that matches, (T,) integer; `NONE` if there is none."""
        found = self.matches.any(axis=1)
        return np.where(found, self.values[self.matches.argmax(axis=1)], NONE)


def draw(
    rng: np.random.Generator, count: int, tokens: int, distances: Sequence[int] | None = None
) -> Triples:
    """Draw triples whose keys differ, so that at most one matches.

    A query goes back a distance i - j drawn from `distances` (default: all). If there is no such key it asks
    for one that has not occurred yet, half of the time that of its own triple.
    """
    choices = np.arange(1, count + 1) if distances is None else np.asarray(distances)
    order = rng.permutation(tokens)
    sources = np.arange(count) - rng.choice(choices, count)
    unseen = [order[i if rng.random() < 0.5 else rng.integers(i, tokens)] for i in range(count)]
    queries = np.where(sources >= 0, order[np.maximum(sources, 0)], unseen)
    return Triples(order[:count], rng.integers(0, tokens, count), queries, tokens)


def draw_any(rng: np.random.Generator, count: int, tokens: int) -> Triples:
    """Draw triples of independent tokens: keys repeat, with other values."""
    keys, values, queries = rng.integers(0, tokens, (3, count))
    return Triples(keys, values, queries, tokens)


def from_sequence(sequence: np.ndarray, tokens: int) -> Triples:
    """Return the N - 1 triples (x_i, x_{i+1}, x_i): they turn recall in a sequence into recall in triples.

    Each occurrence of a token is a query, and the key's value is the token after it.
    """
    return Triples(sequence[:-1], sequence[1:], sequence[:-1], tokens)


def one_hot(tokens: np.ndarray, count: int) -> Matrix:
    """Return one-hot rows of `count` columns; `NONE` becomes a row of zeros."""
    return (np.asarray(tokens)[:, None] == np.arange(count)).astype(np.float64)


def one_hot_rows(triples: Triples) -> Matrix:
    """Return one row per token, (3 T, c)."""
    return one_hot(triples.rows, triples.tokens)


def one_hot_blocks(triples: Triples) -> Matrix:
    """Return keys, values and queries in a block of columns each, (3 T, 3 c) (Zoology, remark H.26)."""
    roles = np.tile(np.eye(3), (len(triples), 1))
    return (roles[:, :, None] * one_hot_rows(triples)[:, None]).reshape(3 * len(triples), -1)


def binary_rows(triples: Triples) -> Matrix:
    """Return one row of d = ceil(log2 c) bits per token, at least one bit, (3 T, d)."""
    return binary(triples.rows, bits(triples.tokens))


def bits(tokens: int) -> int:
    """Return the number of bits that distinguish `tokens` tokens, at least 1."""
    return max(1, (tokens - 1).bit_length())
