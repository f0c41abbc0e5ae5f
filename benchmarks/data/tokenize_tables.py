"""Format the `tokenize` report as a table, on a terminal and in Markdown."""

from typing import Any

from benchmarks import pages
from benchmarks.pages import MISSING
from benchmarks.tables import show_rows

_COLUMNS = (
    "text, GB",
    "files, GB",
    "shards, GB",
    "documents",
    "time, min",
    "million tokens/s",
    "library alone",
    "ratio",
    "peak memory, MiB",
)


def show(report: dict[str, Any]) -> None:
    """Print a whole report."""
    show_rows(
        "Tokenizing", _facts(report), [(_COLUMNS, map(_cells, report["rows"]))], report["notes"], left=0
    )


def insert(page: str, report: dict[str, Any] | None) -> str:
    """Insert the table of a report; with None only check for its comments (ValueError: there are none)."""
    if report is None:
        return pages.insert(page, "tokenize", None)
    if not report["rows"]:
        return page  # interrupted
    table = pages.table(_COLUMNS, map(_cells, report["rows"]), left=0)
    return pages.insert(
        page, "tokenize", "\n\n".join(["", f"{_facts(report)}:", table, *report["notes"], ""])
    )


def _cells(row: dict[str, Any]) -> list[str]:
    rate, library, peak = row["tokens_per_second"], row["library_tokens_per_second"], row["peak_mib"]
    return [
        *(f"{row[name] / 1e9:.2f}" for name in ("text_bytes", "file_bytes", "shard_bytes")),
        f"{row['documents']:,}",
        f"{row['seconds'] / 60:.1f}",
        f"{rate / 1e6:.2f}",
        f"{library / 1e6:.2f} (± {row['library_spread']:.0%})",
        f"{rate / library:.2f}",
        MISSING if peak is None else f"{peak:,.0f}",
    ]


def _facts(report: dict[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    workers = f"--workers {settings['workers']}"
    return f"{machine['cpu']}, {machine['cores']} cores, {workers}, {machine['date'][:10]}"
