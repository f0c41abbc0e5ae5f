"""Sample sequences of symbols, and compute sums of pairwise interactions as their targets.

    y_i = sum_j f(x_i, x_j) w(x_j)          over all j of the sequence, j = i included

f(a, b) is how strongly b acts on a, w(b) the effect of the action (Ustaomeroglu & Qu 2025, equation 2). Each
y_i depends on its own symbol and on the counts of the symbols only: y(a) = sum_b f(a, b) s(b) w(b).
"""

from dataclasses import dataclass

import numpy as np

from based_jax.typing import Float, Int


@dataclass(frozen=True)
class Interactions:
    """A pairwise interaction as float64 tables over S symbols."""

    f: Float[np.ndarray, "S S"]  # f[a, b] is how strongly b acts on a
    w: Float[np.ndarray, "S d2"]  # w[b] is the effect of b's action on the outputs

    @property
    def size(self) -> int:
        """The number S of symbols."""
        return len(self.f)

    @property
    def outputs(self) -> int:
        """The number d2 of outputs."""
        return self.w.shape[1]

    def targets(self, x: Int[np.ndarray, "... L"]) -> Float[np.ndarray, "... L d2"]:
        """Return the sums of interactions of sequences `x` of symbols, j = i included; float64."""
        x = np.asarray(x)
        return self.f[x[..., :, None], x[..., None, :]] @ self.w[x]


def random_interactions(rng: np.random.Generator, size: int, outputs: int) -> Interactions:
    """Interactions between `size` symbols with standard normal tables."""
    return Interactions(rng.normal(size=(size, size)), rng.normal(size=(size, outputs)))


def sample(
    rng: np.random.Generator,
    size: int,
    length: int,
    count: int,
    probabilities: Float[np.ndarray, " S"] | None = None,
) -> Int[np.ndarray, "count L"]:
    """Draw `count` sequences of `length` independent symbols."""
    if probabilities is None:
        return rng.integers(size, size=(count, length))
    return rng.choice(size, size=(count, length), p=probabilities)


def counts(x: Int[np.ndarray, "... L"], size: int) -> Int[np.ndarray, "... S"]:
    """Return how often each of `size` symbols is in each sequence."""
    x = np.asarray(x)
    rows = x.reshape(-1, x.shape[-1])
    cells = size * np.arange(len(rows))[:, None] + rows
    return np.bincount(cells.ravel(), minlength=len(rows) * size).reshape(*x.shape[:-1], size)
