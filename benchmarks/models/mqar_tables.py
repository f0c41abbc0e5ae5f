"""Format the `mqar` report: a table on a terminal, and a smaller one in Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import pages
from benchmarks.memory import MIB
from benchmarks.pages import MISSING
from benchmarks.rounding import significant
from benchmarks.tables import grid, time_and_spread, wide_console

BASES = {"jax_1": "one by one", "torch_labels": "torch, labels", "torch_all": "torch, all"}
"""Baselines for the other candidates."""


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each candidate's examples per second, all models together, over those of each of `BASES`."""
    speeds = {(row["mixer"], row["candidate"]): row["examples_per_second"] for row in rows}
    return [
        {"mixer": mixer, "candidate": name, "other": base, "ratio": speed / other}
        for (mixer, name), speed in speeds.items()
        for base in BASES
        if base != name and speed and (other := speeds.get((mixer, base)))
    ]


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """Print a whole report."""
    console = console or wide_console()
    console.print(f"\n[bold]Training on MQAR, CPU[/], {_facts(report)}", highlight=False)
    console.print(_table(report))
    for candidate in report["candidates"]:
        console.print(f"  {candidate['name']:<12} {candidate['label']}", highlight=False)
    for line in (*_missing(report), *_agreement(report), *report["notes"]):
        console.print(line, highlight=False)


def _facts(report: dict[str, Any]) -> str:
    settings, machine = report["settings"], report["machine"]
    return (
        f"{settings['dtype']}: d_model {settings['d_model']}, vocabulary {settings['vocab_size']:,}, "
        f"{settings['length']} tokens with {settings['pairs']} pairs, batch {settings['batch_size']}; "
        f"{machine['cpu']}, {machine['cores']} cores; jax {machine['jax']}, "
        f"torch {machine['torch'] or 'not installed'}; {machine['date'][:10]}"
    )


def _table(report: dict[str, Any]) -> Table:
    """One row per mixer and candidate."""
    settings = report["settings"]
    against = (f"x {title}" for title in BASES.values())
    table = grid(
        "Examples per second in training, and what was compiled for it",
        (
            f"each: per learning rate; all: of all learning rates together, and how many times those of the "
            f"others. compile: tracing and compiling, once per program. peak: rise of the process's resident "
            f"memory at the first call. {settings['samples']} samples of {settings['steps']} steps in turns, "
            f"fewer (n) where {settings['seconds_budget']:g} s are spent; skipped above "
            f"{settings['memory_limit_gib']:.3g} GiB."
        ),
        left=["mixer", "candidate"],
        right=["models", "compile s", "each", "step ms", "±", "each/s", "all/s", *against, "peak MiB"],
    )
    previous = None
    for row in report["rows"]:
        if previous not in (None, row["mixer"]):
            table.add_section()
        mixer = "" if previous == row["mixer"] else row["mixer"]
        table.add_row(mixer, row["candidate"], str(row["models"]), *_cells(row, report))
        previous = row["mixer"]
    return table


def _cells(row: dict[str, Any], report: dict[str, Any]) -> Iterable[str]:
    if row["seconds"] is None:
        return ("", "", row["status"])
    step = time_and_spread(row | {"seconds": row["step_seconds"]}, report["settings"]["samples"])
    memory = "" if row["peak_rss_bytes"] is None else significant(row["peak_rss_bytes"] / MIB)
    return (*_compile(row), *step, *_speeds(row), *_against(row, report, ""), memory)


def _compile(row: dict[str, Any]) -> Iterable[str]:
    """Return seconds per program, and per model."""
    seconds = row["compile_seconds"]
    return ("", "") if seconds is None else (f"{seconds:.1f}", f"{seconds / row['models']:.1f}")


def _speeds(row: dict[str, Any]) -> Iterable[str]:
    return (f"{row[key]:,.0f}" for key in ("examples_per_second_per_model", "examples_per_second"))


def _against(row: dict[str, Any], report: dict[str, Any], none: str) -> Iterable[str]:
    """Return the ratios to the throughput of each of `BASES`."""
    found = {
        entry["other"]: f"{entry['ratio']:.2f}"
        for entry in report["summary"]["ratios"]
        if (entry["mixer"], entry["candidate"]) == (row["mixer"], row["candidate"])
    }
    return (found.get(base, "1" if base == row["candidate"] else none) for base in BASES)


def _missing(report: dict[str, Any]) -> list[str]:
    return pages.not_measured(report["rows"], lambda row: f"{row['mixer']} {row['candidate']}")


def _agreement(report: dict[str, Any]) -> Iterable[str]:
    """Write a sentence for each torch row."""
    for entry in report["agreement"]:
        error = "not finite" if entry["relative_error"] is None else f"{entry['relative_error']:.0e}"
        yield (
            f"{entry['mixer']}: {entry['candidate']} "
            f"{'agrees' if entry['agrees'] else 'DISAGREES'} with {entry['other']}: losses "
            f"without dropout differ by at most {error} of the largest (steps: {len(entry['losses'])})"
        )


def insert(page: str, report: dict[str, Any] | None) -> str:
    """Insert the report's table between the page's two comments; with None only check for them.

    Raises:
        ValueError: the page lacks one of the comments, or has them in the wrong order.
    """
    return pages.insert(page, "mqar", None if report is None else _markdown(report))


def _markdown(report: dict[str, Any]) -> str:
    columns = (
        "compile, s",
        "per model",
        "step, ms",
        "examples/s per model",
        "examples/s",
        *(f"x {title}" for title in BASES.values()),
    )
    labels = {candidate["name"]: candidate["label"] for candidate in report["candidates"]}
    rows = []
    for row in report["rows"]:
        if row["seconds"] is None:
            cells: list[str] = [MISSING] * len(columns)
        else:
            compile_cells = [cell or MISSING for cell in _compile(row)]
            step = significant(1000 * row["step_seconds"])
            cells = [*compile_cells, step, *_speeds(row), *_against(row, report, MISSING)]
        rows.append([row["mixer"], labels[row["candidate"]], *cells])
    lines = [f"{_facts(report)}.", "", pages.table(["mixer", "candidate", *columns], rows, left=2)]
    for sentences in (_missing(report), list(_agreement(report))):
        if sentences:
            lines += ["", "; ".join(sentences) + "."]
    for note in report["notes"]:
        lines += ["", note]
    return "\n".join(lines) + "\n"
