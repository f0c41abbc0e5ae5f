"""Bitonic sorting networks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.comparators import exchange, to_bits
from papers.zoology.circuits.compile import compile_circuit, run
from papers.zoology.circuits.sorting import comparators, sort, sort_bits
from papers.zoology.circuits.trace import trace


@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_numbers_come_out_in_order(power, bits, seed):
    count = 2**power
    numbers = np.random.default_rng(seed).integers(2**bits, size=(3, count))
    u, expected = (to_bits(order, bits).reshape(3, -1) for order in (numbers, np.sort(numbers)))
    circuit = trace(lambda values: sort_bits(values, bits), count * bits)
    np.testing.assert_array_equal(circuit(u), expected)
    np.testing.assert_array_equal(run(compile_circuit(circuit), u, count * bits), expected)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_all_inputs_of_zeros_and_ones(count):
    # A network that sorts these sorts all.
    u = to_bits(np.arange(2**count), count)
    np.testing.assert_array_equal(np.stack(sort_bits(list(u.T), 1), -1), np.sort(u))


@pytest.mark.parametrize(
    ("count", "levels", "pairs"), [(1, 0, 0), (2, 1, 1), (4, 3, 6), (8, 6, 24), (16, 10, 80)]
)
def test_counts(count, levels, pairs):
    bits = 4
    comparator = trace(
        lambda values: [bit for number in exchange(values[:bits], values[bits:]) for bit in number], 2 * bits
    )
    network = trace(lambda values: sort_bits(values, bits), count * bits)
    assert comparators(count) == pairs
    assert network.depth == levels * comparator.depth
    assert network.size <= pairs * comparator.size + count * bits


def test_records_are_sorted_by_their_keys():
    records = [[1, 0, 7], [0, 1, 8], [1, 1, 9], [0, 0, 6]]
    assert sort(records, keys=2) == [[0, 0, 6], [0, 1, 8], [1, 0, 7], [1, 1, 9]]


def test_other_counts_are_named():
    with pytest.raises(ValueError, match=r"len\(numbers\) = 3: expected a power of two"):
        sort([[0], [1], [0]])
