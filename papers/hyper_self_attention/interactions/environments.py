"""Define environments whose targets are sums of interactions.

From Ustaomeroglu & Qu 2025, sections 3 and 5, appendix F.

Each defines targets; `constructions` has weights that compute them. A sum over j includes j = i.
Positions are cells of a grid, 0..N-1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from based_jax.typing import Float, Int
from papers.hyper_self_attention.interactions.data import Interactions


def circular_distance(size: int) -> Int[np.ndarray, "N N"]:
    """Return the distance in cells between positions on a circle of `size` cells."""
    distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    return np.minimum(distance, size - distance)


def collisions(radius: int, size: int) -> Interactions:
    """Model agents on a cylinder that all walk right, identified by their y: -1 for each agent in the way.

    Discs of one radius collide if their centres are at most 2 `radius` cells apart; an agent is in its own
    way, which adds a constant -1. Symbols are the cells around the cylinder.
    """
    near = circular_distance(size) <= 2 * radius
    return Interactions(near.astype(float), -np.ones((size, 1)))


def collisions_on_grid(radius: int, neighbourhood: float, size: int) -> Interactions:
    """Extend `collisions`: a collision counts ten times between agents that start close to each other.

    f = 1{|dy| <= 2 radius} (1 + 9 1{distance <= neighbourhood}) with the Euclidean distance of the starts, in
    cells; y is a circle, x is not. Symbols are cells of the N x N grid, coded x N + y.
    """
    x, y = np.unravel_index(np.arange(size**2), (size, size))
    across = np.abs(np.subtract.outer(x, x))
    around = circular_distance(size)[y[:, None], y]
    near = np.hypot(across, around) <= neighbourhood
    return Interactions((around <= 2 * radius) * (1.0 + 9 * near), -np.ones((size**2, 1)))


@dataclass(frozen=True)
class Agents:
    """Agents on an N x N grid, arrays of integers of one shape (..., L)."""

    species: Int[np.ndarray, "... L"]  # 0 a predator, 1 prey
    policy: Int[np.ndarray, "... L"]  # 0 to the right, x grows; 1 up, y falls
    x: Int[np.ndarray, "... L"]  # where they start; so is `y`
    y: Int[np.ndarray, "... L"]


def time_series(
    start: Float[np.ndarray, "T m"],
    weights: Mapping[int, float],
    matrix: Float[np.ndarray, "m m"],
    length: int,
) -> Float[np.ndarray, "length m"]:
    """Return an autoregressive series, m_t = sum_k weights[k] A m_{t-k} for lags k >= 1 and A = `matrix`.

    It has `length` values; the first are `start`, at least as many as the largest lag.
    """
    series = list(start)
    for t in range(len(start), length):
        series.append(matrix @ sum(weight * series[t - lag] for lag, weight in weights.items()))
    return np.stack(series)
