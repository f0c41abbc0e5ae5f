"""Format the `train` report as a table, on a terminal and in Markdown."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from benchmarks import pages
from benchmarks.memory import MIB
from benchmarks.models.train_workload import CHUNKS_FROM, TORCH
from benchmarks.pages import MISSING
from benchmarks.rounding import significant
from benchmarks.tables import grid, wide_console

BASES = {"jax": "based_jax"} | {name: form.label for name, form in TORCH.items()}
"""Baselines for the other candidates."""

EXPLAINED = (
    "±: quartile range over median. x: tokens per second over those of that row, with the quartile ranges of "
    "both put together. scratch: temporary memory that XLA planned. peak: rise of the process's resident "
    "memory at the first call, parameters not counted."
)


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tokens per second of each candidate over those of each of `BASES`, and the relative spread."""
    found = {(row["model"], row["candidate"]): row for row in rows if row["seconds"]}
    return [
        {
            "model": model,
            "candidate": name,
            "other": base,
            "ratio": row["tokens_per_second"] / other["tokens_per_second"],
            "spread": math.hypot(row["spread"], other["spread"]),
        }
        for (model, name), row in found.items()
        for base in BASES
        if base != name and (other := found.get((model, base)))
    ]


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """Print a whole report."""
    console = console or wide_console()
    console.print(f"\n[bold]Training, CPU[/], {_facts(report)}", highlight=False)
    settings = report["settings"]
    limits = (
        f" {settings['samples']} samples of {settings['steps']} steps in turns, fewer where "
        f"{settings['seconds_budget']:g} s are spent; skipped above {settings['memory_limit_gib']:.3g} GiB."
    )
    table = grid(None, EXPLAINED + limits, left=["model", "candidate"], right=_columns(report))
    for row in report["rows"]:
        table.add_row(row["model"], row["candidate"], *_cells(row, report))
    console.print(table)
    for candidate in report["candidates"]:
        console.print(f"  {candidate['name']:<16} {candidate['label']}", highlight=False)
    for line in (*_missing(report), *_agreement(report), *report["notes"]):
        console.print(line, highlight=False)


def _facts(report: dict[str, Any]) -> str:
    settings, machine = report["settings"], report["machine"]
    models = ", ".join(
        f"{name} {facts['schedule']} of {facts['parameters'] / 1e6:.2f} M parameters"
        for name, facts in settings["models"].items()
    )
    return (
        f"{settings['dtype']}: {models}; width {settings['d_model']}, vocabulary {settings['vocab_size']:,}, "
        f"batch {settings['batch_size']} x {settings['length']} tokens; {machine['cpu']}, {machine['cores']} "
        f"cores; jax {machine['jax']}, torch {machine['torch'] or 'not installed'}; {machine['date'][:10]}"
    )


def _bases(report: dict[str, Any]) -> list[str]:
    """Return the baselines of a report, by name."""
    names = {candidate["name"] for candidate in report["candidates"]}
    return [name for name in BASES if name in names]


def _columns(report: dict[str, Any]) -> list[str]:
    against = (f"x {BASES[name]}" for name in _bases(report))
    return ["compile, s", "step, ms", "±", "tokens/s", *against, "scratch, MiB", "peak, MiB"]


def _cells(row: dict[str, Any], report: dict[str, Any]) -> Iterable[str]:
    if row["seconds"] is None:
        return [MISSING] * len(_columns(report))
    compiling = row["compile_seconds"]
    return (
        MISSING if compiling is None else f"{compiling:.1f}",
        significant(1000 * row["step_seconds"]),
        f"{100 * row['spread']:.0f}%",
        f"{row['tokens_per_second']:,.0f}",
        *_against(row, report),
        *(MISSING if size is None else significant(size / MIB) for size in _memory(row)),
    )


def _memory(row: dict[str, Any]) -> tuple[int | None, int | None]:
    return row["temp_bytes"], row["peak_rss_bytes"]


def _against(row: dict[str, Any], report: dict[str, Any]) -> Iterable[str]:
    """Return the ratios to the throughput of each baseline."""
    found = {
        entry["other"]: f"{entry['ratio']:.2f} ± {entry['ratio'] * entry['spread']:.2f}"
        for entry in report["summary"]["ratios"]
        if (entry["model"], entry["candidate"]) == (row["model"], row["candidate"])
    }
    return (found.get(base, "1" if base == row["candidate"] else MISSING) for base in _bases(report))


def _missing(report: dict[str, Any]) -> list[str]:
    return pages.not_measured(report["rows"], lambda row: f"{row['model']} {row['candidate']}")


def _agreement(report: dict[str, Any]) -> list[str]:
    """Write a sentence for each model."""
    lines = []
    for entry in report["agreement"]:
        error = "not finite" if entry["relative_error"] is None else f"{entry['relative_error']:.0e}"
        lines.append(
            f"{entry['model']}: {entry['candidate']} {'agrees' if entry['agrees'] else 'DISAGREES'} with "
            f"{entry['other']}: losses from the same parameters differ by at most {error} of the largest "
            f"(steps: {len(entry['losses'])})"
        )
    return lines


def insert(page: str, report: dict[str, Any]) -> str:
    """Insert the report's table between the page's two comments, see `marker`.

    Raises:
        ValueError: the page lacks one of the comments, or has them in the wrong order.
    """
    return pages.insert(page, marker(report["settings"]["length"]), _markdown(report))


def marker(length: int) -> str:
    """Return the name in a page's comments: sequences that torch trains in chunks too have another table."""
    return "train" if length < CHUNKS_FROM else "train_long"


def _markdown(report: dict[str, Any]) -> str:
    labels = {candidate["name"]: candidate["label"] for candidate in report["candidates"]}
    rows = [[row["model"], labels[row["candidate"]], *_cells(row, report)] for row in report["rows"]]
    lines = [
        f"{_facts(report)}.",
        "",
        pages.table(["model", "candidate", *_columns(report)], rows, left=2),
        "",
        EXPLAINED,
    ]
    for sentences in (_missing(report), _agreement(report)):
        if sentences:
            lines += ["", "; ".join(sentences) + "."]
    for note in report["notes"]:
        lines += ["", note]
    return "\n".join(lines) + "\n"
