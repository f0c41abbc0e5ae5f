"""Summarize records of long-text questions.

    cells   list of {"off", "family", "length", "questions", "match", "first", "first_stderr", "chance",
            "rank", "read_ms", "decode_ms"}; off is the mixer that is switched off, or null
    depths  list of {"off", "family", "length", "depth", "first", "match"}

match   share of the right answers in the generated text
first   share of the right answers that are more likely than all wrong ones; chance is what a guess gives
rank    mean rank of a right answer among the wrong ones
read_ms, decode_ms   milliseconds for a token of a prompt and for a generated one; null if only calls that
            compiled were timed
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Record = Mapping[str, Any]

_CELL = ("off", "family", "length")


def summarize(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """Return the cells and the depths of this module, in the order of the records."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in _CELL), []).append(record)
    cells, depths = [], []
    for key, group in groups.items():
        cell = dict(zip(_CELL, key, strict=True))
        first = _mean(group, "first")
        found = {name: _mean(group, name) for name in ("match", "first", "chance", "rank")}
        found["first_stderr"] = math.sqrt(first * (1 - first) / len(group))
        times = {name: _median(group, name) for name in ("read_ms", "decode_ms")}
        cells.append({**cell, "questions": len(group), **found, **times})
        for depth in sorted({record["depth"] for record in group}):
            at_depth = [record for record in group if record["depth"] == depth]
            shares = {name: _mean(at_depth, name) for name in ("first", "match")}
            depths.append({**cell, "depth": depth, **shares})
    return {"cells": cells, "depths": depths}


def _mean(records: Sequence[Record], name: str) -> float:
    return float(np.mean([record[name] for record in records]))


def _median(records: Sequence[Record], name: str) -> float | None:
    known = [record[name] for record in records if record[name] is not None]
    return float(np.median(known)) if known else None
