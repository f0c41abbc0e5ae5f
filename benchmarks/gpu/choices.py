"""Choose block sizes and backends from measurements, as rows of the tables."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MEASURED = "measured"
"""Status of a row that has a time."""

Row = dict[str, Any]

GAIN = 1.02
"""Minimum speedup over the current block sizes: less may be noise."""

LEAST_SECONDS = 1e-4
"""Time of a call from which on block sizes are compared; of shorter ones the host's start of a kernel, 20 to
50 us, is most."""

BACKEND_GAIN = 1.03
"""Minimum speedup of a backend over the plainer one, which runs in more cases."""

LAST = 10**9
"""The upper end of the last interval of sizes."""


class Compared(NamedTuple):
    """Two backends timed in turns on one size of an op."""

    op: str
    facts: Mapping[str, Any]
    """what a row's conditions require to be equal"""
    sizes: tuple[int, ...]
    """values of `AXES`"""
    gain: float
    """time of `Pair.plain` over that of `Pair.kernel`; 0 if the latter did not run"""


class Pair(NamedTuple):
    """How a section of `python -m benchmarks gpu` compares two backends of an op."""

    op: str
    plain: str
    """taken unless the other one is faster"""
    kernel: str
    mode: str = ""
    """end of the candidates' names"""
    facts: Mapping[str, Any] = {}
    """sizes of the rows that do not have these keys themselves"""


AXES = {
    "taylor_attention": ("rows_and_heads", "length"),
    "taylor_step": ("rows_and_heads",),
    "window_step": ("rows_and_heads",),
}
"""Op -> sizes along which its rows have intervals; a kernel is taken from some value of the last one on."""

_ATTENTION = Pair("taylor_attention", "pallas", "mosaic", facts={"value_size": 64})

PAIRS = {
    "forward": _ATTENTION,
    "mosaic_forward": _ATTENTION,
    "wide": _ATTENTION,
    "backward": _ATTENTION,
    "decode": Pair(
        "taylor_step", "xla", "pallas", " loop", {"key_size": 16, "value_size": 64, "state": "float32"}
    ),
    "window": Pair(
        "window_step",
        "xla",
        "pallas",
        " loop",
        {"width": 64, "shared": 1, "cache": "bfloat16", "rotary": 0, "window": 64},
    ),
}
"""Section -> its comparison; of two of the same sizes in a report the later section here counts. Steps in a
loop, as `generate` runs them."""


def tuning_rows(rows: Sequence[Row], device: str) -> dict[str, list[Row]]:
    """Return op -> rows of its table, one per set of conditions for which other block sizes are faster.

    Shapes with the same conditions share a row: the variant, among those that run on all of them, with the
    lowest mean logarithm of its time over the current choice's. Shapes whose current choice takes less
    than `LEAST_SECONDS` decide nothing.
    """
    groups: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row in rows:
        ratio = row["ratio_to_first"] if row["status"] == MEASURED else None
        if ratio and row["seconds"] / ratio >= LEAST_SECONDS:
            group = groups.setdefault((row["op"], json.dumps(row["when"], sort_keys=True)), {})
            shape, _, _ = row["step"].partition(",")
            group.setdefault(shape, {})[json.dumps(row["variant"])] = math.log(ratio)
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
    devices = (row["device"], "any")
    first = next((i for i, other in enumerate(table) if other["device"] in devices), len(table))
    return [*table[:first], row, *table[first:]]


def compared(report: Mapping[str, Any]) -> list[Compared]:
    """Return the comparisons of backends in a report of `benchmarks gpu`."""
    steps: dict[tuple[str, str], dict[str, Row]] = {}
    for row in report["rows"]:
        if row["section"] in PAIRS and row["status"] == MEASURED:
            steps.setdefault((row["section"], row["step"]), {})[row["what"]] = row
    found = []
    for (section, _), rows in sorted(steps.items(), key=lambda item: list(PAIRS).index(item[0][0])):
        pair = PAIRS[section]
        plain, kernel = (rows.get(name + pair.mode) for name in (pair.plain, pair.kernel))
        if plain and kernel:
            sizes = {"rows_and_heads": kernel["batch"] * kernel["heads"], "length": kernel.get("length")}
            facts = {name: kernel.get(name, value) for name, value in pair.facts.items()}
            gain = plain["seconds"] / kernel["seconds"]
            found.append(Compared(pair.op, facts, tuple(sizes[axis] for axis in AXES[pair.op]), gain))
    return found


def backend_rows(found: Sequence[Compared], capability: str) -> dict[str, list[Row]]:
    """Return op -> rows of its table of backends, for one family of GPUs.

    A kernel is taken from the smallest size on at which it is faster by `BACKEND_GAIN`, if it is not slower
    by that at a larger one. Of two comparisons of the same size the later one counts. Sizes below the
    smallest one have no row.
    """
    groups: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for op, facts, sizes, gain in found:
        outer, inner = (0, *sizes)[-2:]
        groups.setdefault((op, json.dumps(facts)), {}).setdefault(outer, {})[inner] = gain
    tables: dict[str, list[Row]] = {}
    for (op, facts), group in groups.items():
        pair = next(pair for pair in PAIRS.values() if pair.op == op)
        backend = next(name for name in (pair.plain, pair.kernel) if name != "pallas")
        for outer, inner in _merged({low: _interval(x, backend == pair.kernel) for low, x in group.items()}):
            ranges = zip(AXES[op], (outer, inner)[-len(AXES[op]) :], strict=True)
            when = json.loads(facts) | {name: list(range_) for name, range_ in ranges}
            tables.setdefault(op, []).append({"device": capability, "when": when, "backend": backend})
    return tables


Interval = tuple[int, int]


def _interval(gains: Mapping[int, float], kernel: bool) -> Interval | None:
    """Return the sizes for which the kernel is taken, or those for which the plain backend is."""
    lost = max((n for n, gain in gains.items() if gain <= 1 / BACKEND_GAIN), default=0)
    since = min((n for n, gain in gains.items() if gain >= BACKEND_GAIN and n > lost), default=LAST + 1)
    low, high = (since, LAST) if kernel else (min(gains), since - 1)
    return (low, min(high, LAST)) if low <= min(high, LAST) else None


def _merged(intervals: Mapping[int, Interval | None]) -> Iterator[tuple[Interval, Interval]]:
    """Yield an interval of the outer size with that of the inner one, equal neighbours as one."""
    starts = [next(lows) for _, lows in itertools.groupby(sorted(intervals), intervals.__getitem__)]
    for low, following in itertools.zip_longest(starts, starts[1:], fillvalue=LAST + 1):
        if (inner := intervals[low]) is not None:
            yield (low, following - 1), inner
