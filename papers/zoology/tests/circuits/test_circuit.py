"""Circuits: evaluated, counted and traced."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.circuit import Node
from papers.zoology.circuits.random import random_circuit
from papers.zoology.circuits.trace import trace

X, Y = Node("variable"), Node("variable")


def test_counts_by_hand():
    # (x + y) * (x + y) * 3 and x: four gates' worth of nodes over two variables and a constant.
    circuit = trace(lambda w: [(s := w[0] + w[1]) * s * 3, w[0]], variables=2)
    assert (circuit.variables, circuit.size, circuit.depth, circuit.width) == (2, 6, 3, 2)
    assert circuit.levels == (0, 0, 1, 2, 0, 3)
    assert [circuit.linear(index) for index in range(6)] == [False, False, True, False, False, True]
    np.testing.assert_array_equal(circuit(np.array([[1.0, 2.0], [0.5, 0.0]])), [[27, 1], [0.75, 0.5]])


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


def test_neutral_constants_take_no_gates():
    circuit = trace(lambda w: [0 + w[0] * 1, w[0] * 0 + 2 * 3, (w[0] + 0) * (1 + 1)], variables=1)
    assert [node.kind for node in circuit.nodes] == ["variable", "constant", "constant", "*"]
