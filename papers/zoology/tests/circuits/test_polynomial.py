"""Polynomials as nested sums."""

from math import comb

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.circuits.compile import compile_circuit, run
from papers.zoology.circuits.polynomial import monomials, polynomial, term_by_term
from papers.zoology.circuits.stages import product_depth
from papers.zoology.circuits.trace import trace


@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_the_value_and_its_layers(variables, degree, seed):
    rng = np.random.default_rng(seed)
    coefficients = {term: float(rng.normal()) for term in monomials(variables, degree)}
    circuit = trace(lambda values: [polynomial(values, coefficients)], variables)
    u = rng.uniform(-1, 1, size=(3, variables))
    expected = term_by_term(u, coefficients)
    np.testing.assert_allclose(circuit(u), expected, rtol=0, atol=EXACT)
    np.testing.assert_allclose(run(compile_circuit(circuit), u, 1), expected, rtol=0, atol=EXACT)
    assert product_depth(circuit) == max(0, degree - 1)
    assert compile_circuit(circuit).account.layers == max(1, 2 * degree - 1)


def test_monomials_and_gates_are_counted():
    assert monomials(2, 2) == [(), (0,), (1,), (0, 0), (0, 1), (1, 1)]
    for variables in range(1, 6):
        terms = monomials(variables, 3)
        assert len(terms) == comb(variables + 3, 3)
        coefficients = {term: 1.5 + number for number, term in enumerate(terms)}
        circuit = trace(lambda values, given=coefficients: [polynomial(values, given)], variables)
        # A constant, a product and a sum for every term, but for the constant term.
        assert circuit.size == variables + 3 * len(terms) - 2


def test_by_hand():
    coefficients = {(): 2.0, (0,): 3.0, (1,): 0.0, (0, 0): 1.0, (0, 1): -1.0, (1, 1): 5.0}
    assert polynomial([2.0, 3.0], coefficients) == 2 + 6 + 4 - 6 + 45
    np.testing.assert_array_equal(term_by_term(np.array([[2.0, 3.0]]), coefficients), [[51]])
