"""Solve MQAR by a dictionary, one triple after another (Zoology, algorithm 9).

The first value of a key stays, so the answers are those of `Triples.answers`. On the rows of
`data.tasks.MQAR` these are the labels: a key first occurs in the context, whatever noise is between the
queries.
"""

from collections.abc import Iterable

import numpy as np

from papers.zoology.mqar.triples import NONE, Triples


def solve(triples: Triples) -> np.ndarray:
    """Return the answers, (T,): the query is looked up before the triple's own pair is entered."""
    known: dict[int, int] = {}
    answers = []
    for key, value, query in zip(triples.keys, triples.values, triples.queries, strict=True):
        answers.append(known.get(int(query), NONE))
        known.setdefault(int(key), int(value))
    return np.array(answers)


def solve_sequence(sequence: Iterable[int]) -> np.ndarray:
    """Return the token that followed each token's first occurrence, (N,); `NONE` for a new token.

    Except for the last token this is `solve` on `triples.from_sequence`: a token right after an equal one is
    answered by itself.
    """
    known: dict[int, int] = {}
    answers, before = [], None
    for token in map(int, sequence):
        if before is not None:
            known.setdefault(before, token)
        answers.append(known.get(token, NONE))
        before = token
    return np.array(answers)
