"""Choose block sizes and backends from measurements, as rows of the tables."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pallas_kernels import tuning
from pallas_kernels.trials import MEASURED

Row = dict[str, Any]

GAIN = 1.02
"""Minimum speedup over the current block sizes: less may be noise."""

BACKEND_GAIN = 1.03
"""Minimum speedup of a backend over the portable one, which runs on more GPUs."""


def tuning_rows(rows: Sequence[Row], device: str) -> dict[str, list[Row]]:
    """Return op -> rows of its table, one per set of conditions for which other block sizes are faster.

    Shapes with the same conditions share a row: the variant, among those that run on all of them, with the
    lowest mean logarithm of its time over the current choice's.
    """
    groups: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["status"] == MEASURED:
            group = groups.setdefault((row["op"], json.dumps(row["when"], sort_keys=True)), {})
            ratio = math.log(row["seconds"] / row["reference_seconds"])
            group.setdefault(row["case"], {})[json.dumps(row["variant"])] = ratio
    found: dict[str, list[Row]] = {}
    for (op, when), shapes in groups.items():
        common = set.intersection(*map(set, shapes.values()))  # each has at least the current choice
        means = {v: sum(times[v] for times in shapes.values()) / len(shapes) for v in common}
        best = min(means, key=lambda variant: (means[variant], variant))
        if means[best] <= -math.log(GAIN):
            row = {"device": device, "when": json.loads(when), "variant": json.loads(best)}
            found.setdefault(op, []).append(row)
    return found


def with_row(table: Sequence[Row], row: Row) -> list[Row]:
    """Return `table` with `row` in place of one with equal conditions, or before others that may match."""
    conditions = (row["device"], row["when"])
    if any((other["device"], other["when"]) == conditions for other in table):
        return [row if (other["device"], other["when"]) == conditions else other for other in table]
    devices = tuning.matching(row["device"])
    first = next((i for i, other in enumerate(table) if other["device"] in devices), len(table))
    return [*table[:first], row, *table[first:]]


def with_backends(table: Sequence[Row], rows: Sequence[Row], device: str) -> list[Row]:
    """Return a table of backends with these measurements replacing the device's rows of the same sizes."""
    fresh, measured = [], set()
    for row in rows:
        measured.add(_lowest(row["when"]))
        if row["status"] == MEASURED and row["seconds"] * BACKEND_GAIN <= row["reference_seconds"]:
            fresh.append({"device": device, "when": row["when"], "backend": row["candidate"]})
    kept = [row for row in table if row["device"] != device or _lowest(row["when"]) not in measured]
    return [*kept, *fresh]


def _lowest(when: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the smallest size for which a row of backends holds."""
    return when["rows_and_heads"][0], when["length"][0], when["value_size"]
