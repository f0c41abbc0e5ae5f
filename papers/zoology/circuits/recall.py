"""Write MQAR as a circuit: sort keys and queries together, and pass values on (Zoology, H.33 and H.36).

The paper's circuit searches sorted keys by recursion on slices whose ends are data, and wires cannot follow
those. Sorting does the same search without them:

    1. records of every query q_i, with time 2 i, and every key k_i, with time 2 i + 1 and its value v_i
    2. sort by token, then time: each query comes after the earlier keys with its token
    3. a scan passes on token and value of the last key; a query takes the value if the token is its own
    4. sort by time: the queries are back in their positions

For T triples of d-bit tokens, O(T (d + log T) log^2 T) gates on O(log^2 T log(d + log T)) levels, and no
dyadic intervals: all pairs j < i in one search.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from papers.zoology.circuits.comparators import Bits, compare, opposite, to_bits
from papers.zoology.circuits.sorting import sort


def recall(values: Sequence[Any], bits: int) -> list[Any]:
    """Return for each query the d = `bits` bits of the last earlier triple's value with that key, or zeros.

    Values are T = 2^k triples (k_i, v_i, q_i) of 3 d bits each: wires, numbers or arrays.
    """
    tokens = [values[start : start + bits] for start in range(0, len(values), bits)]
    triples = list(zip(tokens[::3], tokens[1::3], tokens[2::3], strict=True))
    clock = (2 * len(triples) - 1).bit_length()
    records = []
    for number, (key, value, query) in enumerate(triples):
        early, late = to_bits(2 * number + np.arange(2), clock).astype(int).tolist()
        records += [[*query, *early, *[0] * bits], [*key, *late, *value]]
    found = _take_last_key(sort(records, bits + clock), bits, clock)
    return [bit for record in sort(found, clock)[::2] for bit in record[clock:]]


def look_up(u: np.ndarray, bits: int) -> np.ndarray:
    """Return the same with a dictionary for each row: (B, 3 T d) to (B, T d), float64."""
    answers = np.zeros((len(u), u.shape[1] // (3 * bits), bits))
    for row, answer in zip(u.reshape(len(u), -1, 3, bits), answers, strict=True):
        known: dict[bytes, np.ndarray] = {}
        for i, (key, value, query) in enumerate(row):
            answer[i] = known.get(query.tobytes(), 0)
            known[key.tobytes()] = value
    return answers.reshape(len(u), -1)


def _take_last_key(records: list[Bits], bits: int, clock: int) -> list[Bits]:
    """Records (token, time, value) in order, to (time, answer); the last bit of a key's time is 1."""
    ends = bits + clock
    held = scan([(record[ends - 1], [*record[:bits], *record[ends:]]) for record in records])
    answers = []
    for record, (_, last) in zip(records, held, strict=True):
        _, same = compare(record[:bits], last[:bits])
        answers.append([*record[bits:ends], *(same * bit for bit in last[bits:])])
    return answers


def scan(items: list[tuple[Any, Bits]]) -> list[tuple[Any, Bits]]:
    """For each item return the last one up to it whose first bit is 1, or zeros, in log2(count) steps."""

    def later(first: tuple[Any, Bits], second: tuple[Any, Bits]) -> tuple[Any, Bits]:
        """Return the second, or the first where the second is not there and so all zeros."""
        missing = opposite(second[0])
        contents = zip(first[1], second[1], strict=True)
        return second[0] + missing * first[0], [b + missing * a for a, b in contents]

    items = [(there, [there * bit for bit in content]) for there, content in items]
    for doubling in range((len(items) - 1).bit_length()):
        items = items[: 2**doubling] + list(map(later, items, items[2**doubling :]))
    return items
