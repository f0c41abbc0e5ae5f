"""Bits that are compared, exchanged and selected."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.comparators import both, compare, differ, exchange, opposite, select, to_bits
from papers.zoology.circuits.compile import compile_circuit, run
from papers.zoology.circuits.trace import trace


def test_gates_of_bits():
    for x, y in product((0, 1), repeat=2):
        assert (both(x, y), differ(x, y), opposite(x)) == (x & y, x ^ y, 1 - x)


def test_bits_begin_with_the_most_significant():
    np.testing.assert_array_equal(to_bits(np.array([[6], [1]]), 3), [[[1, 1, 0]], [[0, 0, 1]]])


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_all_pairs(bits):
    x, y = (axis.ravel() for axis in np.indices((2**bits, 2**bits)))
    u = np.hstack([to_bits(x, bits), to_bits(y, bits)])
    circuit = trace(lambda values: _all(values[:bits], values[bits:]), 2 * bits)
    smaller, larger = to_bits(np.minimum(x, y), bits), to_bits(np.maximum(x, y), bits)
    expected = np.hstack([(x < y)[:, None], (x == y)[:, None], smaller, larger])
    np.testing.assert_array_equal(circuit(u), expected)
    np.testing.assert_array_equal(run(compile_circuit(circuit), u, expected.shape[1]), expected)


def _all(x, y):
    smaller, larger = exchange(x, y)
    return [*compare(x, y), *smaller, *larger]


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_long_numbers_differ_in_one_bit(bits, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(2, size=bits).tolist()
    y = list(x)
    position = rng.integers(bits)
    y[position] = 1 - x[position]
    assert compare(x, y) == (int(x < y), 0)
    assert compare(x, x) == (0, 1)


@given(st.integers(1, 70))
def test_counts(bits):
    less = trace(lambda values: compare(values[:bits], values[bits:])[:1], 2 * bits)
    levels = (bits - 1).bit_length()
    assert 14 * bits - 7 - levels <= less.size <= 14 * bits - 7
    assert less.depth <= 5 + 2 * levels
    assert less.width <= 5 * bits
    comparator = trace(
        lambda values: [bit for number in exchange(values[:bits], values[bits:]) for bit in number], 2 * bits
    )
    assert comparator.size <= 21 * bits
    assert comparator.depth <= 9 + 2 * levels


def test_bits_after_the_key_move_along():
    assert exchange([1, 0, 1], [0, 1, 0], keys=1) == ([0, 1, 0], [1, 0, 1])
    assert exchange([1, 0, 1], [1, 1, 0], keys=1) == ([1, 0, 1], [1, 1, 0])  # equal: x first
    assert select(1, [1, 0], [0, 1]) == [1, 0]
    assert select(0, [1, 0], [0, 1]) == [0, 1]
