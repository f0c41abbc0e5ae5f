"""The tables of the `conv_basis` report."""

import math
from collections.abc import Iterable
from typing import Any

from benchmarks import tables
from benchmarks.analysis import series
from benchmarks.ops.candidates import FORWARD, PASSES
from benchmarks.ops.conv_basis_candidates import DENSE, FFT, has_pass
from benchmarks.tables import MISSING, PASS_TITLES, exponent, significant


def text(report: dict[str, Any]) -> str:
    """Return milliseconds by length and their growth, one table per pass; break-even k; the products."""
    settings = report["settings"]
    columns = [*(f"{length:,}" for length in settings["lengths"]), "growth"]
    facts = (
        f"{settings['dtype']}, batch {settings['batch']}, {settings['heads']} head(s) of "
        f"{settings['head_dim']} channels; {tables.ran_on(report, 'jax')}. Milliseconds by tokens; growth: "
        f"time ~ N^p from {report['summary']['growth_from_length']} tokens up."
    )
    return tables.blocks(
        facts,
        *(tables.table([PASS_TITLES[way], *columns], _times(report, way)) for way in PASSES),
        tables.table(["break-even k", *columns], _break_even(report)),
        tables.table(["one product, µs", *columns], _products(report)),
        # Without cases that another one covers or that do not exist.
        tables.not_measured(
            (row for row in report["rows"] if has_pass(row["candidate"], row["pass"])),
            lambda row: f"{row['candidate']} {PASS_TITLES[row['pass']]} at {row['length']:,} tokens",
        ),
    )


def _times(report: dict[str, Any], direction: str) -> Iterable[list[str]]:
    for candidate in report["candidates"]:
        if candidate["name"] in (DENSE, FFT):
            continue
        kind, _, terms = candidate["name"].partition("_")
        if not has_pass(candidate["name"], direction):
            continue
        label = "exact softmax" if candidate["terms"] is None else f"k = {terms}"
        label += ", through anchors" * (kind == "anchors")
        yield [label, *_row(report, candidate["name"], direction, 1e3)]


def _break_even(report: dict[str, Any]) -> Iterable[list[str]]:
    found = {(e["gradient"], e["pass"], e["length"]): e["terms"] for e in report["summary"]["break_even"]}
    largest, lengths = max(report["settings"]["terms"]), report["settings"]["lengths"]
    for gradient, direction in dict.fromkeys(key[:2] for key in found):
        cells = []
        for length in lengths:
            if (gradient, direction, length) not in found:
                cells.append(MISSING)
            elif (terms := found[gradient, direction, length]) is None:
                cells.append(f"over {largest}")
            else:
                cells.append(_terms(terms))
        label = PASS_TITLES[direction] + (", through anchors" * (gradient == "anchors"))
        yield [label, *cells, ""]
        if gradient != "anchors":
            by_formula = (even_operations(direction, n, report["settings"]["head_dim"]) for n in lengths)
            yield [f"{label}, by operations", *map(_terms, by_formula), ""]


def _terms(terms: float) -> str:
    return "none" if terms < 1 else f"{terms:.3g}"


def even_operations(direction: str, length: int, channels: int) -> float:
    """Return the k with which attention through k convolutions takes as many operations as exact attention.

    Counted for one head. Exact attention forms half of the products of all pairs: 2 N^2 K forward, 5 N^2 K
    backward. A real transform of length L = 2 N takes F = 2.5 L log2 L. Forward there are k kernels and
    k (K + 1) columns to transform and K + 1 to transform back, with 8 operations per product of spectra and
    2 k N K for the scores; backward 2 (k + 1) K^2 and their products (all pairs of channels; paper, section
    5).
    """
    transform = 2.5 * 2 * length * math.log2(2 * length)
    fixed, each = (channels + 1) * transform, (channels + 2) * transform
    each += 8 * (channels + 1) * length + 2 * length * channels
    exact = 2 * length**2 * channels
    if direction != FORWARD:
        fixed += 2 * channels**2 * transform
        each += 2 * channels**2 * transform + 16 * channels**2 * length
        exact += 5 * length**2 * channels
    return max(exact - fixed, 0) / each


def _products(report: dict[str, Any]) -> Iterable[list[str]]:
    for name, label in ((DENSE, "dense"), (FFT, "FFT")):
        yield [label, *_row(report, name, FORWARD, 1e6)]


def _row(report: dict[str, Any], name: str, direction: str, unit: float) -> list[str]:
    times = series(report["rows"], name, direction)
    growth = {(e["candidate"], e["pass"]): e["time_exponent"] for e in report["summary"]["growth"]}
    power = growth[name, direction]
    return [
        *(significant(unit * times[n]) if n in times else MISSING for n in report["settings"]["lengths"]),
        exponent(power) if power is None else f"N^{exponent(power)}",
    ]
