"""The worlds' targets, by loops over their entities."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions import environments as worlds
from papers.hyper_self_attention.interactions.data import sample
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close


def around(a: int, b: int, size: int) -> int:
    return min((a - b) % size, (b - a) % size)


@given(draw.seeds, st.integers(1, 9), st.integers(0, 3), st.integers(1, 6))
def test_collisions(seed, size, radius, length):
    x = sample(np.random.default_rng(seed), size, length, 1)[0]
    expected = [-sum(around(a, b, size) <= 2 * radius for b in x) for a in x]
    assert worlds.collisions(radius, size).targets(x)[:, 0].tolist() == expected


@given(draw.seeds, st.integers(1, 5), st.integers(0, 2), st.sampled_from([0.0, 1.0, 2.5]))
def test_collisions_on_a_grid(seed, size, radius, neighbourhood):
    agents = np.random.default_rng(seed).integers(size, size=(4, 2))
    expected = []
    for a, b in agents:
        value = 0
        for c, d in agents:
            dy = around(b, d, size)
            value -= (dy <= 2 * radius) * (10 if (a - c) ** 2 + dy**2 <= neighbourhood**2 else 1)
        expected.append(value)
    truth = worlds.collisions_on_grid(radius, neighbourhood, size)
    assert truth.targets(agents @ [size, 1])[:, 0].tolist() == expected


def met(first, second, radius: int) -> bool:
    """Of two agents (policy, x, y)."""
    (p, x, y), (q, u, v) = first, second
    if p != q:
        return abs((x - u) - (y - v)) <= 2 * radius
    return abs(y - v if p == worlds.RIGHT else x - u) <= 2 * radius


@given(draw.seeds, st.integers(1, 4), st.integers(0, 1))
def test_two_policies(seed, size, radius):
    rng = np.random.default_rng(seed)
    agents = np.stack([rng.integers(n, size=5) for n in (2, size, size)], axis=-1)
    expected = [-sum(met(a, b, radius) for b in agents) for a in agents]
    truth = worlds.collisions_of_two_policies(radius, size)
    assert truth.targets(agents @ [size**2, size, 1])[:, 0].tolist() == expected


def test_paths_meet_where_the_agents_walk():
    """Points that start on one diagonal are at one position at one time, before or after the start."""
    size = 4
    for x, y, u, v in product(range(size), repeat=4):
        pair = worlds.Agents(*np.array([[0, 0], [worlds.RIGHT, worlds.UP], [x, u], [y, v]]))
        touch = any((x + t, y) == (u, v - t) for t in range(-size, size + 1))
        assert worlds.meet(pair, 0)[0, 1] == touch


@given(draw.seeds, st.integers(1, 6), st.integers(0, 2), st.integers(1, 9))
def test_predators_and_prey(seed, size, radius, length):
    rng = np.random.default_rng(seed)
    species, policy, x, y = (rng.integers(n, size=length) for n in (2, 2, size, size))
    agents = worlds.Agents(species, policy, x, y)
    every = list(zip(species, zip(policy, x, y, strict=True), strict=True))
    expected = []
    for mine, own in every:
        gains = [
            1 if other == worlds.PREY else -1 for other, it in every if other != mine and met(own, it, radius)
        ]
        expected.append(sum(gains))
    assert worlds.predators_and_prey(agents, radius).tolist() == expected


def test_genotypes():
    """The paper's example: 3 activates 1, 2 is always active, 2 activates 4; right at one length only."""
    truth = worlds.genotype({1: [3], 2: [], 4: [2]}, size=5, length=3)
    assert truth.f[1, 3] == truth.f[4, 2] == 1
    assert_close(truth.f[2], np.full(5, 1 / 3), FLOAT64)
    assert np.count_nonzero(truth.f) == 7
    assert_close(truth.targets(np.array([1, 2, 4]))[:, 0], np.array([0.0, 1.0, 1.0]), FLOAT64)
    assert_close(truth.targets(np.array([3, 1, 0]))[:, 0], np.array([0.0, 1.0, 0.0]), FLOAT64)
    assert_close(truth.targets(np.array([2, 0]))[0], np.array([2 / 3]), FLOAT64, "another length")
    needs_two = worlds.genotype({0: [1, 2]}, size=3, length=2)
    assert_close(needs_two.targets(np.array([0, 1]))[0], np.array([0.5]), FLOAT64)


@given(draw.seeds, st.integers(1, 5))
def test_genotypes_of_any_length_after_a_rectifier(seed, length):
    """1 - max(0, 1 - 3 y), a dense layer after the sum for length 3, says who is active at every length."""
    activators: dict[int, list[int]] = {1: [3], 2: [], 4: [2]}
    truth = worlds.genotype(activators, size=5, length=3)
    genome = np.random.default_rng(seed).permutation(5)[:length]
    y = truth.targets(genome)[:, 0]
    active = [a in activators and (not activators[a] or activators[a][0] in genome) for a in genome]
    assert_close(1 - np.maximum(0, 1 - 3 * y), np.array(active, float), FLOAT64)


@given(draw.seeds, st.integers(1, 4), st.integers(1, 5))
def test_patterns(seed, height, width):
    rng = np.random.default_rng(seed)
    image = rng.integers(2, size=(2, height, width)).astype(bool)
    offsets = [(0, 0), (-1, 2), (3, 0), (1, -1)]
    found = worlds.black_at(image, offsets)
    for n, i, j in np.ndindex(image.shape):
        positions = [(i + down, j + right) for down, right in offsets]
        inside = [(a, b) for a, b in positions if 0 <= a < height and 0 <= b < width]
        assert found[n, i, j] == sum(image[n, a, b] for a, b in inside)
        assert worlds.pixels(image)[n, i * width + j] == image[n, i, j] * height * width + i * width + j


def test_time_series():
    rng = np.random.default_rng(0)
    start, matrix = rng.normal(size=(5, 2)), rng.normal(size=(2, 2)) / 9
    series = worlds.time_series(start, {2: 3.0, 5: 7.0}, matrix, 9)
    assert_close(series[:5], start, FLOAT64)
    for t in range(5, 9):
        assert_close(series[t], 3 * matrix @ series[t - 2] + 7 * matrix @ series[t - 5], FLOAT64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: worlds.collisions(-1, 4), "radius = -1"),
        (lambda: worlds.collisions(1, 0), "size = 0"),
        (lambda: worlds.collisions_on_grid(-1, 1.0, 4), "radius = -1"),
        (lambda: worlds.collisions_of_two_policies(-1, 2), "radius = -1"),
        (lambda: worlds.genotype({0: [3]}, 3, 2), "alleles in 0..2"),
        (lambda: worlds.genotype({}, 3, 0), "length = 0"),
        (lambda: worlds.pixels(np.ones(3, bool)), "image.shape"),
        (lambda: worlds.time_series(np.ones((2, 1)), {3: 1.0}, np.eye(1), 4), "the largest lag"),
        (lambda: worlds.time_series(np.ones((2, 1)), {0: 1.0}, np.eye(1), 4), "lags of 1 or more"),
        (lambda: worlds.time_series(np.ones((2, 1)), {1: 1.0}, np.eye(2), 4), "matrix has shape"),
        (lambda: worlds.time_series(np.ones((2, 1)), {1: 1.0}, np.eye(1), 1), "length = 1"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
