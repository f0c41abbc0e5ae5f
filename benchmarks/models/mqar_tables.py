"""The table of the `mqar` report."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks import tables
from benchmarks.tables import MISSING, milliseconds

BASES = {"jax_1": "one by one", "torch_labels": "torch, labels", "torch_all": "torch, all"}
"""Baselines for the other candidates."""

COLUMNS = ("compile, s", "per model", "step, ms", "examples/s per model", "examples/s")


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each candidate's examples per second, all models together, over those of each of `BASES`."""
    speeds = {(row["mixer"], row["candidate"]): row["examples_per_second"] for row in rows}
    return [
        {"mixer": mixer, "candidate": name, "other": base, "ratio": speed / other}
        for (mixer, name), speed in speeds.items()
        for base in BASES
        if base != name and speed and (other := speeds.get((mixer, base)))
    ]


def text(report: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    settings = report["settings"]
    facts = (
        f"{settings['dtype']}: d_model {settings['d_model']}, vocabulary {settings['vocab_size']:,}, "
        f"{settings['length']} tokens with {settings['pairs']} pairs, batch {settings['batch_size']}; "
        f"{tables.ran_on(report, 'jax', 'torch')}."
    )
    labels = {candidate["name"]: candidate["label"] for candidate in report["candidates"]}
    rows = ([row["mixer"], labels[row["candidate"]], *_cells(row, report)] for row in report["rows"])
    columns = ["mixer", "candidate", *COLUMNS, *(f"x {title}" for title in BASES.values())]
    return tables.blocks(
        facts,
        tables.table(columns, rows, left=2),
        tables.not_measured(report["rows"], lambda row: f"{row['mixer']} {row['candidate']}"),
        tables.sentence(list(_agreement(report))),
    )


def _cells(row: dict[str, Any], report: dict[str, Any]) -> Iterable[str]:
    if row["seconds"] is None:
        return [MISSING] * (len(COLUMNS) + len(BASES))
    compiling = row["compile_seconds"]
    compiled = (MISSING, MISSING)
    if compiling is not None:
        compiled = f"{compiling:.1f}", f"{compiling / row['models']:.1f}"
    speeds = (f"{row[key]:,.0f}" for key in ("examples_per_second_per_model", "examples_per_second"))
    found = {
        entry["other"]: f"{entry['ratio']:.2f}"
        for entry in report["summary"]["ratios"]
        if (entry["mixer"], entry["candidate"]) == (row["mixer"], row["candidate"])
    }
    against = (found.get(base, "1" if base == row["candidate"] else MISSING) for base in BASES)
    return *compiled, milliseconds(row["step_seconds"]), *speeds, *against


def _agreement(report: dict[str, Any]) -> Iterator[str]:
    """Write a sentence for each torch row."""
    for entry in report["agreement"]:
        error = "not finite" if entry["relative_error"] is None else f"{entry['relative_error']:.0e}"
        yield (
            f"{entry['mixer']}: {entry['candidate']} "
            f"{'agrees' if entry['agrees'] else 'DISAGREES'} with {entry['other']}: losses "
            f"without dropout differ by at most {error} of the largest (steps: {len(entry['losses'])})"
        )
