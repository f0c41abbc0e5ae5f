"""The worlds' targets, by loops over their entities."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions import environments as worlds
from papers.hyper_self_attention.interactions.data import sample
from tests.ops import draw


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
