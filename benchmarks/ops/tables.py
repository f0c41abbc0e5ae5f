"""Print the `ops` report on a terminal: timings, growth, crossovers and ratios as tables."""

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.memory import MIB
from benchmarks.rounding import exponent, significant
from benchmarks.tables import PASS_TITLES, grid, time_and_spread, wide_console

AGREEMENT = 1e-3
"""Allowed difference within a family relative to its largest value: float32 sums in another order."""


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """Print a whole report."""
    console = console or wide_console()
    settings, machine = report["settings"], report["machine"]
    console.print(
        f"\n[bold]Causal attention on CPU[/], {settings['dtype']}: batch {settings['batch']}, "
        f"{settings['heads']} heads, Taylor q and k {settings['key_size']}, values {settings['value_size']} "
        f"channels per head\n{machine['cpu']}, {machine['cores']} cores; jax {machine['jax']}, "
        f"python {machine['python']}, torch {machine['torch'] or 'not installed'}; {machine['date']}",
        highlight=False,
    )
    console.print(_timings(report))
    for candidate in report["candidates"]:
        console.print(
            f"  {candidate['name']:<22} {candidate['label']}; q and k have "
            f"{candidate['query_key_channels']}, v {candidate['value_channels']} channels per head",
            highlight=False,
        )
    console.print(*_growth(report), *_comparison(report))
    for line in (*_headline(report), *_agreement(report), *report["notes"]):
        console.print(line, highlight=False)


def _timings(report: dict[str, Any]) -> Table:
    """One row per length and candidate, both passes side by side."""
    settings = report["settings"]
    memory = ("scratch MiB", "peak MiB")
    clock = " Time is processor time." if settings.get("processor_time") else ""
    titles = [column for title in PASS_TITLES.values() for column in (f"{title} ms", "±", *memory)]
    table = grid(
        "Median time per call, quartile range, memory",
        (
            f"scratch: temporary memory that XLA planned; peak: rise of the process's resident memory "
            f"(coarse below 10 MiB). {settings['repeats']} interleaved samples per case, fewer (n) where "
            f"{settings['seconds_budget']:g} s are spent; skipped above that or "
            f"{settings['memory_limit_gib']:.3g} GiB.{clock}"
        ),
        left=["tokens", "candidate"],
        right=titles,
    )
    table.columns[0].justify = "right"
    cases = {(row["length"], row["candidate"], row["pass"]): row for row in report["rows"]}
    for length in sorted({row["length"] for row in report["rows"]}):
        for position, candidate in enumerate(report["candidates"]):
            name = candidate["name"]
            rows = [cases.get((length, name, direction)) for direction in PASS_TITLES]
            last = position == len(report["candidates"]) - 1
            cells = [cell for row in rows for cell in _cells(row, settings["repeats"])]
            table.add_row("" if position else str(length), name, *cells, end_section=last)
    return table


def _cells(row: dict[str, Any] | None, repeats: int) -> Iterable[str]:
    if row is None:
        return "", "", "", ""
    memory = _mebibytes(row["temp_bytes"]), _mebibytes(row["peak_rss_bytes"])
    if row["seconds"] is None:
        return f"[dim]{row['status']}: {row['reason']}[/]" if row["reason"] else row["status"], "", *memory
    return *time_and_spread(row, repeats), *memory


def _growth(report: dict[str, Any]) -> Iterable[Table]:
    """Yield the fitted exponents, if there are at least two lengths."""
    start = report["summary"]["growth_from_length"]
    if all(entry["time_exponent"] is None for entry in report["summary"]["growth"]):
        return
    table = grid(
        f"Growth exponents p of time and scratch memory ~ tokens^p, fitted from {start} tokens up",
        "1 is linear, 2 quadratic; least squares of log on log; '-': fewer than two lengths.",
        left=["candidate"],
        right=[
            f"{title} {column}" for title in PASS_TITLES.values() for column in ("time", "scratch", "lengths")
        ],
    )
    growth = {(entry["candidate"], entry["pass"]): entry for entry in report["summary"]["growth"]}
    for candidate in report["candidates"]:
        cells = []
        for direction in PASS_TITLES:
            entry = growth[candidate["name"], direction]
            cells += [exponent(entry["time_exponent"]), exponent(entry["memory_exponent"])]
            cells.append(f"{min(entry['lengths'])}-{max(entry['lengths'])}" if entry["lengths"] else "-")
        table.add_row(candidate["name"], *cells)
    yield table


def _comparison(report: dict[str, Any]) -> Iterable[Table]:
    """Yield ratios at each length and the crossover, if our candidate was measured."""
    entries = report["summary"]["against"]
    if not entries:
        return
    ours = entries[0]["candidate"]
    lengths = sorted({point["length"] for entry in entries for point in entry["ratios"]})
    table = grid(
        f"How many times faster {ours} is than the others, by tokens",
        "faster from: first measured length from which it stays faster ('-': not at the longest).",
        left=["than", "pass"],
        right=["faster from", *map(str, lengths)],
    )
    for entry in entries:
        points = {point["length"]: point["ratio"] for point in entry["ratios"]}
        cells = [f"{points[length]:.2f}x" if length in points else "" for length in lengths]
        title = PASS_TITLES[entry["pass"]]
        table.add_row(entry["other"], title, str(entry["crossover_length"] or "-"), *cells)
    yield table


def _headline(report: dict[str, Any]) -> Iterable[str]:
    """Describe how our candidate grows, and from where it is faster than JAX's own softmax attention."""
    summary = report["summary"]
    for entry in summary["against"]:
        if entry["other"] != "dot_product_attention":
            continue
        ours, direction, title = entry["candidate"], entry["pass"], PASS_TITLES[entry["pass"]]
        (growth,) = (g for g in summary["growth"] if (g["candidate"], g["pass"]) == (ours, direction))
        start = entry["crossover_length"]
        crossing = f"from {start} tokens up" if start else "at no measured length to the end"
        fitted = ""
        if growth["time_exponent"] is not None:
            fitted = (
                f"time ~ N^{exponent(growth['time_exponent'])}, scratch memory ~ "
                f"N^{exponent(growth['memory_exponent'])} from {summary['growth_from_length']} tokens up; "
            )
        yield f"{ours}, {title}: {fitted}faster than {entry['other']} {crossing}"


def _agreement(report: dict[str, Any]) -> Iterable[str]:
    """Write a sentence per pair; the worst length decides."""
    pairs: dict[tuple[str, str], list[float]] = {}
    for entry in report["agreement"]:
        error = math.nan if entry["relative_error"] is None else entry["relative_error"]
        pairs.setdefault((entry["candidate"], entry["other"]), []).append(error)
    for (name, other), errors in pairs.items():
        good = all(error <= AGREEMENT for error in errors)
        yield (
            f"{name} {'agrees' if good else '[bold red]DISAGREES[/]'} with {other}: outputs and gradients "
            f"differ by at most {max(errors):.0e} of their largest value"
        )


def _mebibytes(value: int | None) -> str:
    return "" if value is None else significant(value / MIB)
