"""Sample sequences of symbols, and compute sums of pairwise interactions as their targets.

    y_i = sum_j f(x_i, x_j) w(x_j)          over all j of the sequence, j = i included

f(a, b) is how strongly b acts on a, w(b) the effect of the action (Ustaomeroglu & Qu 2025, equation 2). Each
y_i depends on its own symbol and on the counts of the symbols only: y(a) = sum_b f(a, b) s(b) w(b).
"""

from dataclasses import dataclass

import numpy as np

from based_jax.typing import Float, Int
from based_jax.validate import expect, expect_array


@dataclass(frozen=True)
class Interactions:
    """A pairwise interaction as float64 tables over S symbols."""

    f: Float[np.ndarray, "S S"]  # f[a, b] is how strongly b acts on a
    w: Float[np.ndarray, "S d2"]  # w[b] is the effect of b's action on the outputs

    def __post_init__(self) -> None:
        expect_array("f", self.f, ("S", "S"), "floating")
        expect_array("f", self.f, (len(self.f), len(self.f)))
        expect_array("w", self.w, (len(self.f), "d2"), "floating")

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
        x = _expect_symbols(x, self.size)
        return self.f[x[..., :, None], x[..., None, :]] @ self.w[x]


def random_interactions(rng: np.random.Generator, size: int, outputs: int) -> Interactions:
    """Interactions between `size` symbols with standard normal tables."""
    expect(size >= 1, "size", size, "at least 1")
    expect(outputs >= 1, "outputs", outputs, "at least 1")
    return Interactions(rng.normal(size=(size, size)), rng.normal(size=(size, outputs)))


def sample(
    rng: np.random.Generator,
    size: int,
    length: int,
    count: int,
    probabilities: Float[np.ndarray, " S"] | None = None,
) -> Int[np.ndarray, "count L"]:
    """Draw `count` sequences of `length` independent symbols."""
    for name, value in (("size", size), ("length", length), ("count", count)):
        expect(value >= 1, name, value, "at least 1")
    if probabilities is None:
        return rng.integers(size, size=(count, length))
    expect_array("probabilities", probabilities, (size,), "floating")
    return rng.choice(size, size=(count, length), p=probabilities)


def counts(x: Int[np.ndarray, "... L"], size: int) -> Int[np.ndarray, "... S"]:
    """Return how often each of `size` symbols is in each sequence."""
    x = _expect_symbols(x, size)
    rows = x.reshape(-1, x.shape[-1])
    cells = size * np.arange(len(rows))[:, None] + rows
    return np.bincount(cells.ravel(), minlength=len(rows) * size).reshape(*x.shape[:-1], size)


def _expect_symbols(x: Int[np.ndarray, "... L"], size: int) -> Int[np.ndarray, "... L"]:
    x = np.asarray(x)
    if not np.issubdtype(x.dtype, np.integer):
        raise TypeError(f"x has dtype {x.dtype}: expected an integer dtype")
    expect(x.ndim >= 1 and x.size > 0, "x.shape", x.shape, "(..., L) with no empty axis")
    expect(x.min() >= 0 and x.max() < size, "x", (int(x.min()), int(x.max())), f"symbols in 0..{size - 1}")
    return x
