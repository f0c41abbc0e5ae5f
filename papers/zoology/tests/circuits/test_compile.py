"""Compiled circuits compute what their gates do, in the layers that the theorem allows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.circuits.circuit import Circuit, Node
from papers.zoology.circuits.columnar import compile_columns
from papers.zoology.circuits.compile import compile_circuit, run
from papers.zoology.circuits.random import random_circuit
from papers.zoology.circuits.stages import merged_levels, product_depth


@given(
    how=st.sampled_from(["merged", "by level", "on a column"]),
    variables=st.integers(1, 5),
    gates=st.integers(0, 25),
    outputs=st.integers(1, 4),
    reach=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_layers_compute_what_the_gates_do(how, variables, gates, outputs, reach, seed):
    rng = np.random.default_rng(seed)
    circuit = random_circuit(rng, variables, gates, min(outputs, variables + gates), reach)
    on_a_column = how == "on a column"
    stack = compile_columns(circuit) if on_a_column else compile_circuit(circuit, how == "merged")
    u = rng.uniform(-1, 1, size=(3, variables))
    assert np.abs(run(stack, u, len(circuit.outputs)) - circuit(u)).max() <= EXACT * (not on_a_column)
    account, depth = stack.account, product_depth(circuit)
    if on_a_column:  # shifts round nothing, and sums and products are the gates' own
        doublings = max(1, (circuit.width - 1).bit_length())
        assert (account.length, account.width) == (2**doublings, 9)
        assert account.layers <= 1 + max(1, circuit.depth) * (10 * doublings - 3)
        assert account.parameters == account.layers * (81 + 27 * 2**doublings)
    elif how == "merged":
        above = any(merged_levels(circuit)[output] > depth for output in circuit.outputs)
        assert account.layers == max(1, 2 * depth + above)
    else:
        values = [index for index, node in enumerate(circuit.nodes) if node.kind == "*"]
        products = {circuit.levels[index] for index in values if not circuit.linear(index)}
        assert account.layers == max(1, circuit.depth + len(products)) <= max(1, 2 * circuit.depth)
        assert account.width <= 2 * circuit.width
        assert all(np.count_nonzero(layer.weights, axis=0).max() <= 2 for layer in stack.layers)
        assert account.nonzeros <= 16 * circuit.width * max(1, circuit.depth)


def test_gates_of_constants_and_gates_nobody_reads():
    one, two = Node("constant", value=1), Node("constant", value=2)
    gates = (Node("+", (1, 2)), Node("*", (2, 2)), Node("*", (0, 3)), Node("*", (0, 0)), Node("+", (5, 4)))
    circuit = Circuit((Node("variable"), one, two, *gates), (7,))  # 3 x + 4, and x^2
    for merge in (False, True):
        assert run(compile_circuit(circuit, merge), np.array([[5.0]]), 1) == [[19.0]]
