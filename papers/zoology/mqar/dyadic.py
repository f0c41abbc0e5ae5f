"""Solve MQAR by sorting and searching in dyadic intervals, all at once (Zoology, algorithms 10 and 11).

For every level k the triples fall into intervals of 2^k; the keys of a left half are sorted, and the queries
of the right half next to it are looked up among them by `parallel_search`. Each pair j < i of a key
and a query meets in exactly one of these, that of the highest bit in which j and i differ.

Three corrections. The search gives the first key that is not below the query, which has to be compared with
it: otherwise every query up to the largest key is answered. The answer is the value of that key, not the one
    of
the query's next row. And a prefix of an index is its highest bits; with the lowest first, as printed, the
"intervals" are residue classes, in which keys meet earlier queries and miss later ones.

Costs are counted in comparisons of tokens, d bits each.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from papers.zoology.mqar.triples import NONE, Triples


class Meeting(NamedTuple):
    """Keys j and queries i > j that are compared."""

    level: int
    keys: range
    queries: range


class Cost(NamedTuple):
    """Comparisons of tokens."""

    sorting: int  # by merging, of keys and of queries
    searching: int  # by the searches, and for equality
    steps: int  # sequential ones in the longest search, without sorting; meetings run in parallel


def meetings(count: int) -> Iterator[Meeting]:
    """Yield the meetings of `count` triples, level by level; unless it is a power of 2 some are truncated."""
    for level in range((count - 1).bit_length()):
        half = 1 << level
        for start in range(0, count - half, 2 * half):
            middle = start + half
            yield Meeting(level, range(start, middle), range(middle, min(middle + half, count)))


def solve(triples: Triples) -> tuple[np.ndarray, Cost]:
    """Return the answers, (T,), and their cost."""
    sources = np.full(len(triples), len(triples))
    sorting = searching = steps = 0
    for meeting in meetings(len(triples)):
        keys, comparisons_1 = merge_sort([(int(triples.keys[j]), j) for j in meeting.keys])
        queries, comparisons_2 = merge_sort([(int(triples.queries[i]), i) for i in meeting.queries])
        found, work, depth = parallel_search([query for query, _ in queries], [key for key, _ in keys])
        for (query, i), position in zip(queries, found, strict=True):
            if position < len(keys) and keys[position][0] == query:
                sources[i] = keys[position][1]  # higher levels lie further back: the first key stays
        sorting += comparisons_1 + comparisons_2
        searching += work + len(queries)
        steps = max(steps, depth + 1)
    answers = np.append(triples.values, NONE)[sources]
    return answers, Cost(sorting, searching, steps)


def parallel_search(queries: list[int], keys: list[int]) -> tuple[list[int], int, int]:
    """Find for each query the first key that is not below it, where queries and keys are in order.

    The middle query's position divides keys and queries into two halves, which are searched side by side.
    Returns the positions, len(keys) where all keys are below; the comparisons; those one after the other.
    """
    positions = [len(keys)] * len(queries)

    def search(first: int, last: int, low: int, high: int) -> tuple[int, int]:
        """Search queries first ... last - 1 among keys low ... high - 1; other keys cannot match."""
        if first == last:
            return 0, 0
        if low == high:
            positions[first:last] = [low] * (last - first)
            return 0, 0
        middle = (first + last) // 2
        positions[middle], own = _position(queries[middle], keys, low, high)
        left_work, left_depth = search(first, middle, low, positions[middle])
        right_work, right_depth = search(middle + 1, last, positions[middle], high)
        return own + left_work + right_work, own + max(left_depth, right_depth)

    return positions, *search(0, len(queries), 0, len(keys))


def merge_sort(items: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
    """Return (token, index) sorted by tokens, stably, and the number of comparisons."""
    if len(items) < 2:
        return items, 0
    left, left_work = merge_sort(items[: len(items) // 2])
    right, right_work = merge_sort(items[len(items) // 2 :])
    merged, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i][0] <= right[j][0]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:], left_work + right_work + i + j


def _position(query: int, keys: list[int], low: int, high: int) -> tuple[int, int]:
    """Return the first of keys low ... high - 1 not below the query, else `high`; and the comparisons."""
    compared: list[int] = []

    def look(key: int) -> int:
        compared.append(key)
        return key

    return bisect_left(keys, query, low, high, key=look), len(compared)
