"""Write polynomials in several variables as nested sums.

    p(x) = c + sum_i x_i p_i(x_i, x_(i+1), ...)        (every p_i has a degree less)

so degree D takes D levels of products: 2 D + 1 BaseConv layers, whatever the variables and terms.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from papers.zoology.circuits.trace import total

Coefficients = Mapping[tuple[int, ...], float]
"""Coefficient of each monomial, by the indices of its variables in increasing order: (0, 0, 2) is x0^2 x2."""


def polynomial(values: Sequence[Any], coefficients: Coefficients, above: tuple[int, ...] = ()) -> Any:
    """Return the value of a polynomial with all `monomials` up to its degree, at wires, numbers or arrays.

    Only terms with the factors `above`, those outside the brackets, are used.
    """
    if above not in coefficients:
        return 0.0
    first = above[-1] if above else 0
    brackets = [polynomial(values, coefficients, (*above, i)) for i in range(first, len(values))]
    products = [x * bracket for x, bracket in zip(values[first:], brackets, strict=True)]
    return total([coefficients[above], *products])


def monomials(variables: int, degree: int) -> list[tuple[int, ...]]:
    """Return all monomials up to a degree."""
    degrees = range(degree + 1)
    return [term for size in degrees for term in combinations_with_replacement(range(variables), size)]


def term_by_term(u: np.ndarray, coefficients: Coefficients) -> np.ndarray:
    """Return the values of a polynomial, (..., n) to (..., 1)."""
    terms = [value * u[..., list(term)].prod(axis=-1) for term, value in coefficients.items()]
    return np.sum(terms, axis=0)[..., None]
