"""Define a row of the table of a paper's command: a statement, and the result of its check."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from papers.zoology.base_conv import Stack

EXACT = 1e-10
"""Largest error of a construction in float64 against the direct computation, for inputs of order 1."""


@dataclass(frozen=True)
class Check:
    """A checked statement of a paper."""

    statement: str
    """in our words, one line"""
    source: str
    """the paper and the section, such as "Zoology, lemma H.7\""""
    checked: str
    """the comparison, one line"""
    sizes: str
    """of the instances, as "N = 16, d = 8, 5 random inputs\""""
    error: float
    """the largest difference from the direct computation, or by how much a bound was missed"""
    tolerance: float = EXACT
    """the largest error with which the statement holds"""
    layers: int | None = None
    """None if the statement is not about layers"""
    layer_bound: str = ""
    """what the paper allows, evaluated, as "3" or "<= 4 log2 w = 20\""""
    parameters: int | None = None
    """None if the statement is not about parameters"""
    parameter_bound: str = ""

    @property
    def holds(self) -> bool:
        """Whether the error is within the tolerance (and a number)."""
        return self.error <= self.tolerance


def counted(stack: Stack) -> dict[str, Any]:
    """Return the fields of a `Check` for a stack: its layers, its parameters, and its nonzero parameters."""
    account = stack.account
    nonzeros = f"{account.nonzeros:,} not 0"
    return {"layers": account.layers, "parameters": account.parameters, "parameter_bound": nonzeros}


def largest_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference of two arrays."""
    return float(np.abs(actual - expected).max())


def listed(sizes: tuple[tuple[int, int], ...]) -> str:
    """Format pairs of sizes for a row of the table."""
    return ", ".join(map(str, sizes))
