"""Format the `loader` report as tables, on a terminal and in Markdown."""

from typing import Any

from benchmarks import pages
from benchmarks.pages import MISSING
from benchmarks.rounding import significant
from benchmarks.tables import show_rows

_ALONE = ("tokens from", "permuted", "segment ids", "million tokens/s", "±")
_RUNS = (
    "tokens, GB",
    "first step, s",
    "own memory, MiB",
    "beyond the least, MiB",
    "mapped, MiB",
    "tokens/s",
)


def show(report: dict[str, Any]) -> None:
    """Print a whole report."""
    show_rows("Data loader", _facts(report), _tables(report), report["notes"])


def insert(page: str, report: dict[str, Any] | None) -> str:
    """Insert the tables of a report; with None only check for their comments (ValueError: there are none)."""
    if report is None:
        return pages.insert(page, "loader", None)
    (alone, loader_rows), (runs, run_rows) = _tables(report)
    settings = report["settings"]
    batch = f"{settings['batch_size']} x {settings['length']:,} tokens"
    parts = [
        f"The loader alone, batches of {batch}; {_facts(report)}:",
        pages.table(alone, loader_rows, left=3),
        f"`train.lm --preset based-tiny` on shards, {settings['steps']} steps:",
        pages.table(runs, run_rows, left=0),
    ]
    return pages.insert(page, "loader", "\n\n".join(["", *parts, *report["notes"], ""]))


def _tables(report: dict[str, Any]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    rows = report["rows"]
    loaders = [row for row in rows if row["kind"] == "loader"]
    runs = [row for row in rows if row["kind"] == "run"]
    least = min((row["anonymous_mib"] or 0 for row in runs), default=0)
    return [
        (_ALONE, [_loader_cells(row) for row in loaders]),
        (_RUNS, [_run_cells(row, least) for row in runs]),
    ]


def _loader_cells(row: dict[str, Any]) -> list[str]:
    segments = "no" if row["cross_documents"] else "yes"
    rate = significant(row["tokens_per_second"] / 1e6)
    return [row["source"], row["shuffle"], segments, rate, f"{row['spread']:.0%}"]


def _run_cells(row: dict[str, Any], least: int) -> list[str]:
    own, mapped = row["anonymous_mib"], row["mapped_mib"]
    return [
        f"{row['gigabytes']:g}",
        f"{row['first_step_seconds']:.1f}",
        MISSING if own is None else f"{own:,}",
        MISSING if own is None else f"{own - least:,}",
        MISSING if mapped is None else f"{mapped:,}",
        f"{row['tokens_per_second']:,.0f}",
    ]


def _facts(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['date'][:10]}"
