"""The tables of the `ops` report: time and scratch memory by length, growth, ratios and agreement."""

import math
from collections.abc import Iterator
from typing import Any

from benchmarks import tables
from benchmarks.analysis import series
from benchmarks.memory import MIB
from benchmarks.tables import MISSING, PASS_TITLES, exponent, milliseconds, significant

AGREEMENT = 1e-3
"""Allowed difference within a family relative to its largest value: float32 sums in another order."""


def text(report: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    settings = report["settings"]
    clock = " Time is processor time." if settings.get("processor_time") else ""
    facts = (
        f"{settings['dtype']}: batch {settings['batch']}, {settings['heads']} heads, Taylor q and k "
        f"{settings['key_size']}, values {settings['value_size']} channels per head; "
        f"{tables.ran_on(report, 'jax', 'torch')}. Medians of up to {settings['repeats']} samples, in turns; "
        f"growth: N^p, from {report['summary']['growth_from_length']} tokens up.{clock}"
    )
    return tables.blocks(
        facts,
        *(_by_length(report, direction) for direction in PASS_TITLES),
        _memory(report),
        _ratios(report),
        *_agreement(report),
        tables.not_measured(
            report["rows"],
            lambda row: f"{row['candidate']} {PASS_TITLES[row['pass']]} at {row['length']:,} tokens",
        ),
    )


def _lengths(report: dict[str, Any]) -> list[int]:
    return sorted({row["length"] for row in report["rows"]})


def _by_length(report: dict[str, Any], direction: str) -> str:
    lengths = _lengths(report)
    growth = {(entry["candidate"], entry["pass"]): entry for entry in report["summary"]["growth"]}
    rows = []
    for candidate in report["candidates"]:
        times = series(report["rows"], candidate["name"], direction)
        power = growth[candidate["name"], direction]["time_exponent"]
        cells = (milliseconds(times.get(length)) for length in lengths)
        rows.append([candidate["label"], *cells, "-" if power is None else f"N^{exponent(power)}"])
    columns = [f"{PASS_TITLES[direction]}, ms", *(f"{length:,}" for length in lengths), "growth"]
    return tables.table(columns, rows)


def _memory(report: dict[str, Any]) -> str:
    lengths, rows = _lengths(report), []
    for candidate in report["candidates"]:
        for direction, title in PASS_TITLES.items():
            found = series(report["rows"], candidate["name"], direction, "temp_bytes")
            if found:
                cells = (significant(found[n] / MIB) if n in found else MISSING for n in lengths)
                rows.append([candidate["label"], title, *cells])
    columns = ["scratch memory, MiB", "pass", *(f"{length:,}" for length in lengths)]
    return tables.table(columns, rows, left=2) if rows else ""


def _ratios(report: dict[str, Any]) -> str:
    """Ratios at each length and the crossover, if our candidate was measured."""
    lengths, rows = _lengths(report), []
    for entry in report["summary"]["against"]:
        points = {point["length"]: point["ratio"] for point in entry["ratios"]}
        cells = (f"{points[length]:.2f}" if length in points else MISSING for length in lengths)
        since = str(entry["crossover_length"] or "-")
        rows.append([entry["other"], PASS_TITLES[entry["pass"]], since, *cells])
    if not rows:
        return ""
    ours = report["summary"]["against"][0]["candidate"]
    columns = [f"time over {ours}'s", "pass", "faster from", *(f"{length:,}" for length in lengths)]
    return tables.table(columns, rows, left=2)


def _agreement(report: dict[str, Any]) -> Iterator[str]:
    """Write a sentence per pair; the worst length decides."""
    pairs: dict[tuple[str, str], list[float]] = {}
    for entry in report["agreement"]:
        error = math.nan if entry["relative_error"] is None else entry["relative_error"]
        pairs.setdefault((entry["candidate"], entry["other"]), []).append(error)
    for (name, other), errors in pairs.items():
        agrees = "agrees" if all(error <= AGREEMENT for error in errors) else "DISAGREES"
        yield (
            f"{name} {agrees} with {other}: outputs and gradients differ by at most {max(errors):.0e} of "
            "their largest value."
        )
