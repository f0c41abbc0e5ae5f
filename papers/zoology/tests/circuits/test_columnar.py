"""Circuits on a column: the theorem's shapes, layers and parameters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.circuit import Circuit, Node
from papers.zoology.circuits.columnar import compile_columns
from papers.zoology.circuits.compile import run
from papers.zoology.circuits.random import random_circuit
from papers.zoology.circuits.sorting import sort_bits
from papers.zoology.circuits.trace import trace


@given(
    variables=st.integers(1, 5),
    gates=st.integers(0, 12),
    outputs=st.integers(1, 4),
    reach=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_layers_compute_what_the_gates_do(variables, gates, outputs, reach, seed):
    rng = np.random.default_rng(seed)
    circuit = random_circuit(rng, variables, gates, min(outputs, variables + gates), reach)
    stack = compile_columns(circuit)
    u = rng.uniform(-1, 1, size=(2, variables))
    # Shifts round nothing, and sums and products are the gates' own.
    np.testing.assert_array_equal(run(stack, u, len(circuit.outputs)), circuit(u))
    account, doublings = stack.account, max(1, (circuit.width - 1).bit_length())
    assert (account.length, account.width) == (2**doublings, 9)
    assert account.layers <= 1 + max(1, circuit.depth) * (10 * doublings - 3)
    assert account.parameters == account.layers * (81 + 27 * 2**doublings)


ORDER = np.random.default_rng(1).permutation(16).tolist()


@pytest.mark.parametrize(
    ("function", "variables"),
    [
        (lambda w: [w[1], w[0], w[1]], 2),
        (lambda w: [w[0] * w[0], w[0] + w[0], 3], 1),
        (lambda w: [w[0] * w[1] + w[2], w[2] - 1], 3),
        (lambda w: [w[0] * other for other in w], 8),  # a value in all rows
        (lambda w: [w[index] * (2.0 + index) for index in ORDER], 16),
        (lambda w: [w[0] * w[1] * w[index] for index in ORDER], 16),
        (lambda w: [w[0] * w[1] * w[5], *w[:5]], 6),  # a factor that waits, far from where it is needed
    ],
)
def test_small_circuits(function, variables):
    circuit = trace(function, variables)
    u = np.random.default_rng(0).normal(size=(4, variables))
    y = run(compile_columns(circuit), u, len(circuit.outputs))
    np.testing.assert_array_equal(y, circuit(u))


def test_gates_of_constants():
    one, two = Node("constant", value=1), Node("constant", value=2)
    gates = (Node("+", (1, 2)), Node("*", (2, 2)), Node("*", (0, 3)), Node("+", (5, 4)))
    circuit = Circuit((Node("variable"), one, two, *gates), (6,))  # 3 x + 4
    assert run(compile_columns(circuit), np.array([[5.0]]), 1) == [[19.0]]


def test_layers_by_hand():
    # Two rows, one level: broadcast, two moves of two layers for each operand at once, and the product.
    product = trace(lambda w: [w[0] * w[1]], 2)
    assert compile_columns(product).account.layers == 1 + 2 * 2 + 1
    # A square twice copies its value once more.
    squares = trace(lambda w: [w[0] * w[0]] * 2, 1)
    assert compile_columns(squares).account.layers == 1 + 3 * 2 + 1


@pytest.mark.slow
def test_a_sorting_network():
    circuit = trace(lambda values: sort_bits(values, 3), 12)
    u = np.random.default_rng(0).integers(2, size=(3, 12)).astype(np.float64)
    np.testing.assert_array_equal(run(compile_columns(circuit), u, 12), circuit(u))
