"""The row of the table for the 1-hot primitive."""

import numpy as np

from based_jax.theory.check import Check, largest_difference
from based_jax.theory.primitives.one_hot import binary, code_width, one_hot, one_hot_layers, one_hot_rows


def checks(seed: int = 0) -> list[Check]:
    """Based, proposition F.12; `seed` has no effect, since all codes are tried."""
    largest = 40
    return [
        Check(
            statement="Binary codes become one-hot rows, 0 a row of zeros",
            source="Based, F.12 (1-hot)",
            checked="every code of b bits against its one-hot row",
            sizes=f"N' = 1..{largest} positions",
            error=max(error(count) for count in range(1, largest + 1)),
            layers=one_hot_layers(largest),
            layer_bound=f"1 + ceil(log2 {code_width(largest)}) = {one_hot_layers(largest)}",
        )
    ]


def error(count: int) -> float:
    """Return the largest difference over all codes, those of no position included."""
    bits = code_width(count)
    numbers = np.arange(2**bits)
    rows = one_hot((len(numbers), bits * count), count)(binary(numbers, bits), (len(numbers), count))
    return largest_difference(rows, one_hot_rows(numbers, count))
