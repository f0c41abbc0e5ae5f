"""Circuits on a column: the theorem's shapes, layers and parameters."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.zoology.circuits.columnar import compile_columns
from papers.zoology.circuits.compile import run
from papers.zoology.circuits.random import random_circuit


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
