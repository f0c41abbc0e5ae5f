"""Format the `layers` report as a table, on a terminal and in Markdown."""

from collections.abc import Sequence
from typing import Any

from benchmarks import pages
from benchmarks.analysis import ratios as time_ratios
from benchmarks.analysis import series
from benchmarks.models.train_workload import TORCH
from benchmarks.ops.candidates import FORWARD_BACKWARD
from benchmarks.pages import MISSING
from benchmarks.rounding import significant
from benchmarks.tables import show_rows


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the time of each form of torch over ours, for each layer and length."""
    found = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        ours = series(rows, f"{layer} jax", FORWARD_BACKWARD)
        for form in TORCH:
            theirs = series(rows, f"{layer} {form}", FORWARD_BACKWARD)
            found += [
                {"layer": layer, "other": form, "length": length, "ratio": ratio}
                for length, ratio in time_ratios(ours, theirs).items()
            ]
    return found


def show(report: dict[str, Any]) -> None:
    """Print a whole report."""
    notes = [*_missing(report), _agreement(report), *report["notes"]]
    show_rows("Based's layers, CPU", _facts(report), [_table(report)], notes, left=2)


def insert(page: str, report: dict[str, Any] | None) -> str:
    """Insert the report's table between the page's two comments; with None only check for them.

    Raises:
        ValueError: the page lacks one of the comments, or has them in the wrong order.
    """
    return pages.insert(page, "layers", None if report is None else _markdown(report))


def _facts(report: dict[str, Any]) -> str:
    settings, machine = report["settings"], report["machine"]
    return (
        f"{settings['dtype']}: d_model {settings['d_model']}, batch {settings['batch']}; {machine['cpu']}, "
        f"{machine['cores']} cores; jax {machine['jax']}, torch {machine['torch'] or 'not installed'}; "
        f"{machine['date'][:10]}"
    )


def _table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return milliseconds by length of each candidate, then torch's times over ours."""
    lengths, rows = report["settings"]["lengths"], report["rows"]
    body = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        for candidate in report["candidates"]:
            if candidate["name"].partition(" ")[0] == layer:
                times = series(rows, candidate["name"], FORWARD_BACKWARD)
                cells = [significant(1000 * times[n]) if n in times else MISSING for n in lengths]
                body.append([layer, candidate["label"], *cells])
        for form in TORCH:
            found = {
                entry["length"]: entry["ratio"]
                for entry in report["summary"]["ratios"]
                if (entry["layer"], entry["other"]) == (layer, form)
            }
            if found:
                cells = [f"{found[n]:.2f}" if n in found else MISSING for n in lengths]
                body.append([layer, f"{TORCH[form].label}: time over ours", *cells])
    return ["layer", "forward and backward, ms", *(f"{n:,}" for n in lengths)], body


def _missing(report: dict[str, Any]) -> list[str]:
    return pages.not_measured(report["rows"], lambda row: f"{row['candidate']} at {row['length']:,} tokens")


def _agreement(report: dict[str, Any]) -> str:
    """Write a sentence about all comparisons."""
    entries = report["agreement"]
    if not entries:
        return "Nothing was compared."
    wrong = [f"{entry['candidate']} at {entry['length']:,}" for entry in entries if not entry["agrees"]]
    if wrong:
        return f"DISAGREES with based_jax: {', '.join(wrong)}."
    largest = max(entry["relative_error"] for entry in entries)
    return (
        f"Outputs and gradients of all rows of a layer agree: they differ by at most {largest:.0e} of the "
        f"largest number of an array."
    )


def _markdown(report: dict[str, Any]) -> str:
    columns, body = _table(report)
    lines = [f"{_facts(report)}.", "", pages.table(columns, body, left=2), "", _agreement(report)]
    if missing := _missing(report):
        lines += ["", "; ".join(missing) + "."]
    for note in report["notes"]:
        lines += ["", note]
    return "\n".join(lines) + "\n"
