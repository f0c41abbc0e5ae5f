"""Compare and exchange numbers bit by bit, with gates that are polynomials (Zoology, H.31 and H.32).

    AND = x y,   XOR = x + y - 2 x y,   NOT = 1 - x        for x, y in {0, 1}

Numbers are lists of bits, the most significant first: wires, numbers or arrays.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from papers.zoology.circuits.trace import tree

Bits: TypeAlias = Sequence[Any]


def to_bits(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Convert integers of any shape to bits, float64 on a new last axis."""
    return (numbers[..., None] >> np.arange(bits)[::-1] & 1).astype(np.float64)


def differ(x: Any, y: Any) -> Any:
    """x XOR y."""
    return x + y + -2 * (x * y)


def opposite(x: Any) -> Any:
    """NOT x."""
    return 1 - x


def compare(x: Bits, y: Bits) -> tuple[Any, Any]:
    """Return whether x < y, and whether x = y, in O(d) gates and O(log d) levels for d bits.

    The upper half decides, unless its bits are equal. Both cases exclude each other, so OR is a sum.
    """

    def decide(upper: tuple[Any, Any], lower: tuple[Any, Any]) -> tuple[Any, Any]:
        (less, equal), (less_below, equal_below) = upper, lower
        return less + equal * less_below, equal * equal_below

    return tree(decide, [(opposite(a) * b, opposite(differ(a, b))) for a, b in zip(x, y, strict=True)])


def select(condition: Any, x: Bits, y: Bits) -> list[Any]:
    """Return x where the condition is 1, y where it is 0."""
    return [b + condition * (a - b) for a, b in zip(x, y, strict=True)]


def exchange(x: Bits, y: Bits, keys: int | None = None) -> tuple[list[Any], list[Any]]:
    """Return the smaller and the larger of two numbers (a comparator), x first if they are equal.

    Only the first `keys` bits are compared (default: all); the bits after them move along.
    """
    swap, _ = compare(y[:keys], x[:keys])
    smaller = select(swap, y, x)
    return smaller, [a + b - low for a, b, low in zip(x, y, smaller, strict=True)]
