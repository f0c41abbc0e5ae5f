"""The fast Fourier transform as a circuit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.circuits.compile import compile_circuit, run
from papers.zoology.circuits.fourier import fourier, numpy_fourier
from papers.zoology.circuits.trace import trace


@given(st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_the_transform_and_its_layers(power, seed):
    size = 2**power
    circuit = trace(fourier, 2 * size)
    u = np.random.default_rng(seed).normal(size=(2, 2 * size))
    expected = numpy_fourier(u)
    np.testing.assert_allclose(circuit(u), expected, rtol=0, atol=EXACT)
    for merge in (False, True):
        y = run(compile_circuit(circuit, merge), u, 2 * size)
        np.testing.assert_allclose(y, expected, rtol=0, atol=EXACT)
    assert compile_circuit(circuit).account.layers == 1
    assert circuit.depth <= 4 * power
    assert compile_circuit(circuit, merge=False).account.nonzeros <= 26 * size * max(1, power)


@pytest.mark.parametrize(("size", "depth"), [(1, 0), (2, 2), (4, 6), (8, 10), (64, 24)])
def test_counts(size, depth):
    circuit = trace(fourier, 2 * size)
    assert circuit.depth == depth
    assert circuit.size <= 6 * size * max(1, size.bit_length() - 1)
    assert circuit.width <= 3 * max(2 * size, 1)


def test_it_is_a_function_of_arrays_too():
    columns = list(np.random.default_rng(0).normal(size=(8, 3)))
    np.testing.assert_allclose(
        np.stack(fourier(columns), -1), numpy_fourier(np.stack(columns, -1)), atol=EXACT
    )


@pytest.mark.parametrize("count", [0, 3, 6])
def test_other_lengths_are_named(count):
    with pytest.raises(ValueError, match=rf"len\(values\) = {count}: expected"):
        fourier([1.0] * count)
