"""One row of the table of `python -m based_jax.theory`: a statement, and what came of checking it."""

from dataclasses import dataclass
from typing import Any

from based_jax.theory.base_conv import Account

EXACT = 1e-10
"""How far a construction in float64 may be from the direct computation, for inputs of order 1."""


@dataclass(frozen=True)
class Check:
    """A statement of a paper that was run.

    Attributes:
        statement: in our words, one line.
        source: the paper and where in it, as "Zoology, lemma H.7".
        checked: what was compared with what, one line.
        sizes: of the instances, as "N = 16, d = 8, 5 random inputs".
        error: the largest difference from the direct computation; for a bound, by how much it was missed.
        tolerance: the largest error with which the statement holds.
        layers: used; None where the statement is not about layers.
        layer_bound: what the paper allows, evaluated, as "3" or "<= 4 log2 w = 20".
        parameters: used; None where the statement is not about parameters.
        parameter_bound: as `layer_bound`.
    """

    statement: str
    source: str
    checked: str
    sizes: str
    error: float
    tolerance: float = EXACT
    layers: int | None = None
    layer_bound: str = ""
    parameters: int | None = None
    parameter_bound: str = ""

    @property
    def holds(self) -> bool:
        """Whether the error is within the tolerance (and a number)."""
        return self.error <= self.tolerance


def counted(account: Account) -> dict[str, Any]:
    """The fields of a `Check` that a stack fills: its layers, its parameters, and how many are not 0."""
    return {
        "layers": account.layers,
        "parameters": account.parameters,
        "parameter_bound": f"{account.nonzeros:,} not 0",
    }
