"""Compiled circuits compute what their gates do, in the layers that the theorem allows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.circuits.circuit import Circuit, Node
from papers.zoology.circuits.compile import compile_circuit, run
from papers.zoology.circuits.random import random_circuit
from papers.zoology.circuits.stages import merged_levels, product_depth
from papers.zoology.circuits.trace import total, trace


@given(
    merge=st.booleans(),
    variables=st.integers(1, 5),
    gates=st.integers(0, 40),
    outputs=st.integers(1, 4),
    reach=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_layers_compute_what_the_gates_do(merge, variables, gates, outputs, reach, seed):
    rng = np.random.default_rng(seed)
    circuit = random_circuit(rng, variables, gates, min(outputs, variables + gates), reach)
    stack = compile_circuit(circuit, merge)
    u = rng.uniform(-1, 1, size=(3, variables))
    assert np.abs(run(stack, u, len(circuit.outputs)) - circuit(u)).max() <= EXACT
    products = [
        level
        for index, level in enumerate(circuit.levels)
        if circuit.nodes[index].kind == "*" and not circuit.linear(index)
    ]
    account, depth = stack.account, product_depth(circuit)
    if merge:
        above = any(merged_levels(circuit)[output] > depth for output in circuit.outputs)
        assert account.layers == max(1, 2 * depth + above)
    else:
        assert account.layers == max(1, circuit.depth + len(set(products))) <= max(1, 2 * circuit.depth)
        assert account.width <= 2 * circuit.width
        assert all(np.count_nonzero(layer.weights, axis=0).max() <= 2 for layer in stack.layers)
        assert account.nonzeros <= 16 * circuit.width * max(1, circuit.depth)


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(
    ("function", "variables"),
    [
        (lambda w: [w[1], w[0], w[1]], 2),  # no gates
        (lambda w: [w[0] * w[0], w[0] * w[0]], 1),  # a factor twice, an output twice
        (lambda w: [3, w[0] * 0], 1),  # constants
        (lambda w: [(p := w[0] * w[1]), p * p, p * w[0], p + 1], 2),  # a value that is read and an output
        (lambda w: [(w[0] + 2) * (w[1] - 3) * -1], 2),
        (lambda w: [w[0] * w[1] * w[2] * w[0] + w[2]], 3),  # a variable that waits
    ],
)
def test_small_circuits(function, variables, merge):
    circuit = trace(function, variables)
    u = np.random.default_rng(0).normal(size=(4, variables))
    y = run(compile_circuit(circuit, merge), u, len(circuit.outputs))
    np.testing.assert_allclose(y, circuit(u), rtol=0, atol=EXACT)


def test_gates_of_constants_and_gates_nobody_reads():
    one, two = Node("constant", value=1), Node("constant", value=2)
    gates = (Node("+", (1, 2)), Node("*", (2, 2)), Node("*", (0, 3)), Node("*", (0, 0)), Node("+", (5, 4)))
    circuit = Circuit((Node("variable"), one, two, *gates), (7,))  # 3 x + 4, and x^2
    for merge in (False, True):
        assert run(compile_circuit(circuit, merge), np.array([[5.0]]), 1) == [[19.0]]


def test_powers_take_as_many_levels_as_their_logarithm():
    def power(w):
        value = w[0]
        for _ in range(5):
            value = value * value
        return [value]

    circuit = trace(power, 1)
    assert (product_depth(circuit), compile_circuit(circuit).account.layers) == (5, 10)
    np.testing.assert_allclose(run(compile_circuit(circuit), np.array([[1.5]]), 1), [[1.5**32]])


def test_a_product_of_two_sums_takes_two_layers():
    circuit = trace(lambda w: [(w[0] + w[1]) * (w[2] + w[3])], 4)
    assert compile_circuit(circuit).account.layers == 2


def test_merging_trades_width_for_layers():
    def squares(w):
        terms, so_far = [], w[0]
        for _ in range(9):
            so_far = so_far + w[0]
            terms.append(so_far * so_far)
        return [sum(terms)]

    circuit = trace(squares, 1)
    by_level, merged = (compile_circuit(circuit, merge).account for merge in (False, True))
    assert (by_level.layers, by_level.width) == (20, 4)
    assert (merged.layers, merged.width) == (3, 9)


@given(st.integers(1, 20))
def test_sums_merge_into_one_layer(count):
    circuit = trace(lambda w: [total(w) * 2 - 1], count)
    assert compile_circuit(circuit).account.layers == 1
    assert run(compile_circuit(circuit), np.ones((1, count)), 1) == [[2 * count - 1]]
