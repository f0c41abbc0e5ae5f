"""Define environments whose targets are sums of interactions.

From Ustaomeroglu & Qu 2025, sections 3 and 5, appendix F.

Each defines targets; `constructions` has weights that compute them. A sum over j includes j = i.
Positions are cells of a grid, 0..N-1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from based_jax.typing import Bool, Float, Int
from based_jax.validate import expect, expect_array
from papers.hyper_self_attention.interactions.data import Interactions

RIGHT, UP = 0, 1
"""Policies: x grows, or y falls."""

PREDATOR, PREY = 0, 1
"""Species."""


def circular_distance(size: int) -> Int[np.ndarray, "N N"]:
    """Return the distance in cells between positions on a circle of `size` cells."""
    expect(size >= 1, "size", size, "at least 1")
    distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    return np.minimum(distance, size - distance)


def collisions(radius: int, size: int) -> Interactions:
    """Model agents on a cylinder that all walk right, identified by their y: -1 for each agent in the way.

    Discs of one radius collide if their centres are at most 2 `radius` cells apart; an agent is in its own
    way, which adds a constant -1. Symbols are the cells around the cylinder.
    """
    expect(radius >= 0, "radius", radius, "at least 0")
    near = circular_distance(size) <= 2 * radius
    return Interactions(near.astype(float), -np.ones((size, 1)))


def collisions_on_grid(radius: int, neighbourhood: float, size: int) -> Interactions:
    """Extend `collisions`: a collision counts ten times between agents that start close to each other.

    f = 1{|dy| <= 2 radius} (1 + 9 1{distance <= neighbourhood}) with the Euclidean distance of the starts, in
    cells; y is a circle, x is not. Symbols are cells of the N x N grid, coded x N + y.
    """
    expect(radius >= 0, "radius", radius, "at least 0")
    x, y = np.unravel_index(np.arange(size**2), (size, size))
    across = np.abs(np.subtract.outer(x, x))
    around = circular_distance(size)[y[:, None], y]
    near = np.hypot(across, around) <= neighbourhood
    return Interactions((around <= 2 * radius) * (1.0 + 9 * near), -np.ones((size**2, 1)))


@dataclass(frozen=True)
class Agents:
    """Agents on an N x N grid, arrays of integers of one shape (..., L)."""

    species: Int[np.ndarray, "... L"]  # `PREDATOR` or `PREY`
    policy: Int[np.ndarray, "... L"]  # `RIGHT` or `UP`
    x: Int[np.ndarray, "... L"]  # where they start; so is `y`
    y: Int[np.ndarray, "... L"]


def meet(agents: Agents, radius: int) -> Bool[np.ndarray, "... L L"]:
    """Return whose paths come within two radii of each other.

    Parallel paths meet by the distance between them: |dy| of two that walk right, |dx| of two that walk up. A
    path to the right meets one that goes up by the difference of their diagonals x - y: |dx - dy|.
    """
    expect(radius >= 0, "radius", radius, "at least 0")
    dx, dy = (np.subtract(c[..., :, None], c[..., None, :]) for c in (agents.x, agents.y))
    mine, other = agents.policy[..., :, None], agents.policy[..., None, :]
    distance = np.where(mine != other, dx - dy, np.where(mine == RIGHT, dy, dx))
    return np.abs(distance) <= 2 * radius


def collisions_of_two_policies(radius: int, size: int) -> Interactions:
    """Model agents that walk right or up: -1 for each one met; the code is (policy N + x) N + y."""
    policy, x, y = np.unravel_index(np.arange(2 * size**2), (2, size, size))
    met = meet(Agents(np.zeros_like(x), policy, x, y), radius)
    return Interactions(met.astype(float), -np.ones((2 * size**2, 1)))


def predators_and_prey(agents: Agents, radius: int) -> Int[np.ndarray, "... L"]:
    """Return each agent's gain from the other species: +1 for each prey it meets, -1 for each predator."""
    species = agents.species
    caught = meet(agents, radius) & (species[..., :, None] != species[..., None, :])
    gain = np.where(species == PREY, 1, -1)
    return np.where(caught, gain[..., None, :], 0).sum(axis=-1)


def genotype(activators: Mapping[int, Sequence[int]], size: int, length: int) -> Interactions:
    """Model alleles that others activate: 1 for an active allele, else 0.

    An allele is active to the extent that its `activators` are present (all: 1), always if it has none, never
    if it is not listed. "Always" is a sum of 1 / `length` over the genome, correct at that length only; as
    the alleles of a genome are distinct, data of one length cannot show it (section 4.3).
    """
    expect(length >= 1, "length", length, "at least 1")
    alleles = {*activators, *(allele for needed in activators.values() for allele in needed)}
    expect(alleles <= {*range(size)}, "activators", activators, f"alleles in 0..{size - 1}")
    f = np.zeros((size, size))
    for allele, needed in activators.items():
        if needed:
            f[allele, list(needed)] = 1 / len(needed)
        else:
            f[allele] = 1 / length
    return Interactions(f, np.ones((size, 1)))


def pixels(image: Bool[np.ndarray, "... height width"]) -> Int[np.ndarray, "... pixels"]:
    """Encode a black and white image as its P pixels (black, position), coded black P + position.

    Positions run along the rows, 0..P-1.
    """
    expect_array("image", image, image.shape, "bool")
    expect(image.ndim >= 2, "image.shape", image.shape, "(..., height, width)")
    black = image.reshape(*image.shape[:-2], -1)
    return black * black.shape[-1] + np.arange(black.shape[-1])


def black_at(
    image: Bool[np.ndarray, "... height width"], offsets: Sequence[tuple[int, int]]
) -> Int[np.ndarray, "... height width"]:
    """Count for each pixel how many of the pixels at `offsets` (rows, columns) from it are black.

    A pattern is present where all its offsets are black. Pixels beyond the edge are white.
    """
    height, width = image.shape[-2:]
    margin = max([1, *(abs(step) for offset in offsets for step in offset)])
    padded = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(margin, margin)] * 2).astype(int)
    found = np.zeros(image.shape, int)
    for down, right in offsets:
        rows, columns = slice(margin + down, margin + down + height), slice(margin + right, None)
        found += padded[..., rows, columns][..., :width]
    return found


def time_series(
    start: Float[np.ndarray, "T m"],
    weights: Mapping[int, float],
    matrix: Float[np.ndarray, "m m"],
    length: int,
) -> Float[np.ndarray, "length m"]:
    """Return an autoregressive series, m_t = sum_k weights[k] A m_{t-k} for lags k >= 1 and A = `matrix`.

    It has `length` values; the first are `start`, at least as many as the largest lag.
    """
    expect_array("start", start, ("T", "m"), "floating")
    expect_array("matrix", matrix, (start.shape[1],) * 2, "floating")
    lags = sorted(weights)
    expect(bool(lags) and lags[0] >= 1, "weights", weights, "lags of 1 or more")
    expect(lags[-1] <= len(start), "start", start.shape, f"at least {lags[-1]} values, the largest lag")
    expect(length >= len(start), "length", length, f"at least {len(start)}, the values of start")
    series = list(start)
    for t in range(len(start), length):
        series.append(matrix @ sum(weight * series[t - lag] for lag, weight in weights.items()))
    return np.stack(series)
