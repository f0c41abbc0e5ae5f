"""Circuits: evaluated, counted and traced."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.circuit import Circuit, Node
from papers.zoology.circuits.random import random_circuit
from papers.zoology.circuits.trace import total, trace, tree

X, Y = Node("variable"), Node("variable")


def test_counts_by_hand():
    # (x + y) * (x + y) * 3 and x: four gates' worth of nodes over two variables and a constant.
    circuit = trace(lambda w: [(s := w[0] + w[1]) * s * 3, w[0]], variables=2)
    assert (circuit.variables, circuit.size, circuit.depth, circuit.width) == (2, 6, 3, 2)
    assert circuit.levels == (0, 0, 1, 2, 0, 3)
    assert [circuit.linear(index) for index in range(6)] == [False, False, True, False, False, True]
    np.testing.assert_array_equal(circuit(np.array([[1.0, 2.0], [0.5, 0.0]])), [[27, 1], [0.75, 0.5]])


def test_a_cut_meets_values_not_readers():
    square_sums = trace(lambda w: [w[0] * w[0] + w[0] * w[0]], variables=1)
    assert square_sums.width == 2  # the two products
    assert trace(lambda w: [w[0]] * 3, variables=1).width == 3  # the outputs
    assert trace(lambda w: [w[0] + 1], variables=4).width == 4  # the variables


@given(st.integers(1, 5), st.integers(0, 40), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_a_cut_meets_what_is_read_after_it(variables, gates, reach, seed):
    circuit = random_circuit(np.random.default_rng(seed), variables, gates, 1, reach)
    cuts = [
        {
            operand
            for node, level in zip(circuit.nodes, circuit.levels, strict=True)
            for operand in node.operands
            if circuit.levels[operand] <= cut < level and circuit.nodes[operand].kind != "constant"
        }
        for cut in range(circuit.depth)
    ]
    assert circuit.width == max(variables, 1, *map(len, cuts)) if cuts else variables


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_values_stay_small_and_batches_are_rows(variables, gates, reach, seed):
    rng = np.random.default_rng(seed)
    circuit = random_circuit(rng, variables, gates, 2, reach)
    u = rng.uniform(-1, 1, size=(2, 3, variables))
    y = circuit(u)
    assert y.shape == (2, 3, 2)
    assert np.abs(y).max() <= 1
    np.testing.assert_array_equal(y[1, 2], circuit(u[1, 2]))


def test_what_python_computes_is_what_is_traced():
    def function(w):
        return [2 - w[0] * 3 + 1.5 * w[1], -w[1] - w[0], w[0] * np.float64(4), np.float64(1) - w[1], 7]

    u = np.array([1.25, -3.0])
    np.testing.assert_array_equal(trace(function, 2)(u), function(u))


def test_neutral_constants_take_no_gates():
    circuit = trace(lambda w: [0 + w[0] * 1, w[0] * 0 + 2 * 3, (w[0] + 0) * (1 + 1)], variables=1)
    assert [node.kind for node in circuit.nodes] == ["variable", "constant", "constant", "*"]


def test_gates_nobody_reads_are_left_out():
    def function(w):
        w[0] * w[1] + 5
        return [w[2] * 2 + 2]

    assert trace(function, 3).size == 3 + 1 + 2


@given(st.integers(1, 40))
def test_trees_keep_the_order_and_are_low(count):
    assert tree(lambda a, b: a + b, [[i] for i in range(count)]) == list(range(count))
    assert trace(lambda w: [total(w)], count).depth == (count - 1).bit_length()


def test_bad_circuits_are_named():
    with pytest.raises(ValueError, match=r"operands of nodes\[1\] = \(0, 1\): expected 2 earlier nodes"):
        Circuit((X, Node("+", (0, 1))), (1,))
    with pytest.raises(ValueError, match="expected the variables first"):
        Circuit((Node("constant", value=1), X), (0,))
    with pytest.raises(ValueError, match=r"outputs = \(2,\): expected indices of 2 nodes"):
        Circuit((X, Y), (2,))
    with pytest.raises(ValueError, match=r"outputs = .*: expected at least one node"):
        Circuit((X,), ())
    with pytest.raises(ValueError, match=r"u has shape \(3,\): expected \(2,\)"):
        trace(lambda w: [w[0] * w[1]], 2)(np.ones(3))
    with pytest.raises(ValueError, match="variables = 0: expected at least 1"):
        trace(lambda w: [1], 0)
    with pytest.raises(ValueError, match=r"items = .*: expected at least one"):
        total([])
    with pytest.raises(ValueError, match="outputs = 4: expected 1 to 3"):
        random_circuit(np.random.default_rng(0), 1, 2, 4)
