"""Associative recall by sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.compile import compile_circuit, run
from papers.zoology.circuits.recall import look_up, recall, scan
from papers.zoology.circuits.trace import trace


@given(st.integers(0, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_every_query_finds_the_last_earlier_key(power, bits, seed):
    triples = 2**power
    u = np.random.default_rng(seed).integers(2, size=(20, 3 * triples * bits)).astype(np.float64)
    np.testing.assert_array_equal(np.stack(recall(list(u.T), bits), -1), look_up(u, bits))


@pytest.mark.parametrize(
    ("triples", "bits", "merge"), [(1, 1, True), (2, 2, False), (2, 2, True), (4, 1, True)]
)
def test_compiled(triples, bits, merge):
    circuit = trace(lambda values: recall(values, bits), 3 * triples * bits)
    u = np.random.default_rng(0).integers(2, size=(10, 3 * triples * bits)).astype(np.float64)
    y = run(compile_circuit(circuit, merge), u, triples * bits)
    np.testing.assert_array_equal(y, look_up(u, bits))


@pytest.mark.slow
def test_size_and_depth_up_to_96_tokens():
    for power, bits in ((3, 4), (4, 5), (5, 5)):
        triples, k = 2**power, power + 1
        width = 2 * bits + k
        circuit = trace(lambda values, d=bits: recall(values, d), 3 * triples * bits)
        assert circuit.size <= 16 * triples * width * k**2
        assert circuit.depth <= 5 * k**2 * np.log2(2 * width)
        assert circuit.width <= 6 * triples * width


def test_look_up_by_hand():
    # (key, value, query), one bit each: the own key does not count, and of two keys the later one does.
    u = np.array([[0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 1, 1]], np.float64).reshape(1, -1)
    np.testing.assert_array_equal(look_up(u, 1), [[0, 1, 0, 1]])
    np.testing.assert_array_equal(recall(u[0], 1), [0, 1, 0, 1])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=9))
def test_a_scan_hands_on_the_last_item_that_is_there(items):
    held, expected = 0, []
    for there, content in items:
        held = content if there else held
        expected.append(held)
    assert [
        content for _, [content] in scan([(int(there), [content]) for there, content in items])
    ] == expected


def test_bad_lengths_are_named():
    with pytest.raises(ValueError, match=r"len\(values\) = 8: expected 3 T bits"):
        recall([0] * 8, 2)
    with pytest.raises(ValueError, match=r"len\(numbers\) = 6: expected a power of two"):
        recall([0] * 9, 1)
