"""Draw random circuits, whose values stay in [-1, 1] if their variables do."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from papers.zoology.circuits.circuit import Circuit
from papers.zoology.circuits.trace import trace


def random_circuit(
    rng: np.random.Generator, variables: int, gates: int, outputs: int = 1, reach: int = 8
) -> Circuit:
    """Draw a circuit whose values are made of two earlier ones, or of one and a constant.

    The last values are the outputs. The two earlier values are at most `reach` back; a smaller reach makes a
    deeper circuit. Of the `gates` values made, a product is one gate, a mean two, a difference three; values
    that no output needs are left out.
    """

    def function(wires: list[Any]) -> Sequence[Any]:
        values = list(wires)
        for _ in range(gates):
            first, second = rng.integers(max(0, len(values) - reach), len(values), size=2)
            values.append(_gate(rng, values[first], values[second]))
        return values[-outputs:]

    return trace(function, variables)


def _gate(rng: np.random.Generator, first: Any, second: Any) -> Any:
    constant = rng.uniform(-1, 1)
    choices = (
        lambda: first * second,
        lambda: (first + second) * 0.5,
        lambda: 0.5 * (first - second),
        lambda: (first + constant) * 0.5,
        lambda: constant * first,
    )
    return choices[rng.integers(len(choices))]()
