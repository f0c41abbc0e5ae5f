"""Permutations and maps by moves of one distance each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.routing import permute, route


def apply(moves, values):
    """The values, (n, ...), after all moves."""
    for move in moves:
        values = np.where((move >= 0).reshape(-1, *(1,) * (values.ndim - 1)), values[move], 0)
    return values


def _is_move(move):
    distances = np.abs(np.where(move >= 0, move - np.arange(len(move)), 0))
    return len(set(distances.tolist()) - {0}) <= 1


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_permutations(doublings, seed):
    order = np.random.default_rng(seed).permutation(2**doublings)
    moves = permute(order)
    np.testing.assert_array_equal(apply(moves, np.arange(2**doublings)), order)
    assert len(moves) == 2 * doublings - 1
    assert all(_is_move(move) and len(set(move.tolist())) == len(move) for move in moves)


def test_all_permutations_of_four():
    orders = np.stack(np.meshgrid(*[np.arange(4)] * 4), -1).reshape(-1, 4)
    for order in orders[[len(set(order.tolist())) == 4 for order in orders]]:
        np.testing.assert_array_equal(apply(permute(order), np.arange(4)), order)


@given(st.integers(1, 6), st.integers(1, 64), st.integers(0, 2**32 - 1))
def test_maps(doublings, values, seed):
    rng = np.random.default_rng(seed)
    size = 2**doublings
    sources, x = rng.integers(-1, min(values, size), size=size), rng.normal(size=(size, 2))
    moves = route(sources)
    np.testing.assert_array_equal(apply(moves, x), np.where(sources[:, None] >= 0, x[sources], 0))
    copies = np.bincount(sources + 1)[1:].max(initial=1)
    assert len(moves) == 4 * doublings - 2 + int(copies - 1).bit_length()
    assert all(map(_is_move, moves))


def test_nothing_and_everything_from_one_row():
    np.testing.assert_array_equal(apply(route(np.full(4, -1)), np.ones(4)), np.zeros(4))
    np.testing.assert_array_equal(apply(route(np.full(8, 5)), np.arange(8)), np.full(8, 5))
