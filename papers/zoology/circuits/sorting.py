"""Build sorting networks: comparators in an order that does not depend on the data (Zoology, H.34, H.35).

Batcher's bitonic network for n = 2^k numbers has k (k + 1) / 2 levels of n / 2 comparators. The lemma's
O(log n) levels are those of the network of Ajtai, Komlos and Szemeredi, which is not built here.
"""

from collections.abc import Sequence
from typing import Any

from papers.zoology.circuits.comparators import Bits, exchange


def sort(numbers: Sequence[Bits], keys: int | None = None) -> list[Bits]:
    """Return the 2^k numbers from the smallest to the largest, by their first `keys` bits (default: all)."""
    size = len(numbers)
    if size == 1:
        return list(numbers)
    lower, upper = sort(numbers[: size // 2], keys), sort(numbers[size // 2 :], keys)
    return merge([*lower, *reversed(upper)], keys)


def merge(numbers: Sequence[Bits], keys: int | None = None) -> list[Bits]:
    """Sort numbers that rise and then fall, in k levels of comparators, see `sort`."""
    half = len(numbers) // 2
    if half == 0:
        return list(numbers)
    pairs = [exchange(x, y, keys) for x, y in zip(numbers[:half], numbers[half:], strict=True)]
    smaller, larger = zip(*pairs, strict=True)
    return [*merge(smaller, keys), *merge(larger, keys)]


def sort_bits(values: Sequence[Any], bits: int) -> list[Any]:
    """`sort` of numbers whose bits follow each other, n d bits to n d bits."""
    numbers = [values[start : start + bits] for start in range(0, len(values), bits)]
    return [bit for number in sort(numbers) for bit in number]


def comparators(size: int) -> int:
    """Return how many comparators the network for 2^k numbers has: 2^k k (k + 1) / 4."""
    steps = size.bit_length() - 1
    return size * steps * (steps + 1) // 4
