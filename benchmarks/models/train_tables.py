"""The table of the `train` report."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks import tables
from benchmarks.memory import MIB
from benchmarks.models.train_workload import CHUNKS_FROM, TORCH
from benchmarks.tables import MISSING, milliseconds, significant

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


def marker(length: int) -> str:
    """Return the name in a page's comments: sequences that torch trains in chunks too have another table."""
    return "train" if length < CHUNKS_FROM else "train_long"


def text(report: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    settings = report["settings"]
    models = ", ".join(
        f"{name} {facts['schedule']} of {facts['parameters'] / 1e6:.2f} M parameters"
        for name, facts in settings["models"].items()
    )
    facts = (
        f"{settings['dtype']}: {models}; width {settings['d_model']}, vocabulary {settings['vocab_size']:,}, "
        f"batch {settings['batch_size']} x {settings['length']} tokens; "
        f"{tables.ran_on(report, 'jax', 'torch')}."
    )
    labels = {candidate["name"]: candidate["label"] for candidate in report["candidates"]}
    bases = [name for name in BASES if name in labels]
    columns = ["compile, s", "step, ms", "±", "tokens/s", *(f"x {BASES[name]}" for name in bases)]
    columns = ["model", "candidate", *columns, "scratch, MiB", "peak, MiB"]
    rows = ([row["model"], labels[row["candidate"]], *_cells(row, report, bases)] for row in report["rows"])
    return tables.blocks(
        facts,
        tables.table(columns, rows, left=2),
        EXPLAINED,
        tables.not_measured(report["rows"], lambda row: f"{row['model']} {row['candidate']}"),
        tables.sentence(list(_agreement(report))),
    )


def _cells(row: dict[str, Any], report: dict[str, Any], bases: Sequence[str]) -> Iterable[str]:
    if row["seconds"] is None:
        return [MISSING] * (6 + len(bases))
    found = {
        entry["other"]: f"{entry['ratio']:.2f} ± {entry['ratio'] * entry['spread']:.2f}"
        for entry in report["summary"]["ratios"]
        if (entry["model"], entry["candidate"]) == (row["model"], row["candidate"])
    }
    sizes = row["temp_bytes"], row["peak_rss_bytes"]
    return (
        MISSING if row["compile_seconds"] is None else f"{row['compile_seconds']:.1f}",
        milliseconds(row["step_seconds"]),
        f"{100 * row['spread']:.0f}%",
        f"{row['tokens_per_second']:,.0f}",
        *(found.get(base, "1" if base == row["candidate"] else MISSING) for base in bases),
        *(MISSING if size is None else significant(size / MIB) for size in sizes),
    )


def _agreement(report: dict[str, Any]) -> Iterator[str]:
    """Write a sentence for each model."""
    for entry in report["agreement"]:
        error = "not finite" if entry["relative_error"] is None else f"{entry['relative_error']:.0e}"
        yield (
            f"{entry['model']}: {entry['candidate']} {'agrees' if entry['agrees'] else 'DISAGREES'} with "
            f"{entry['other']}: losses from the same parameters differ by at most {error} of the largest "
            f"(steps: {len(entry['losses'])})"
        )
