"""Format the `mixers` report: a table on a terminal, and a smaller one in Markdown."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import pages
from benchmarks.analysis import series
from benchmarks.ops.candidates import FORWARD, FORWARD_BACKWARD
from benchmarks.ops.mixer_candidates import DECODE, PASSES
from benchmarks.pages import MISSING
from benchmarks.rounding import exponent, significant
from benchmarks.tables import PASS_TITLES, grid, time_and_spread, wide_console

TITLES = PASS_TITLES | {DECODE: "step"}


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """Print a whole report."""
    console = console or wide_console()
    console.print(f"\n[bold]Sequence mixers on CPU[/], {_facts(report)}", highlight=False)
    console.print(_table(report))
    for candidate in report["candidates"]:
        options = ", ".join(f"{key} = {value}" for key, value in candidate["options"].items())
        if options:
            console.print(f"  {candidate['name']}: {options}", highlight=False)
    for line in (*_missing(report), *report["notes"]):
        console.print(line, highlight=False)


def _missing(report: dict[str, Any]) -> list[str]:
    return pages.not_measured(
        report["rows"],
        lambda row: f"{row['candidate']} {TITLES[row['pass']]} at {row['length']:,} tokens",
    )


def _facts(report: dict[str, Any]) -> str:
    settings, machine = report["settings"], report["machine"]
    return (
        f"{settings['dtype']}: d_model {settings['d_model']}, batch {settings['batch']}; "
        f"{machine['cpu']}, {machine['cores']} cores; jax {machine['jax']}; {machine['date'][:10]}"
    )


def _table(report: dict[str, Any]) -> Table:
    """One row per mixer and length, the passes side by side; growth in each mixer's last row."""
    settings = report["settings"]
    passes = [column for title in TITLES.values() for column in (f"{title} ms", "±", "tokens/s")]
    table = grid(
        "Median time per call, quartile range, throughput, state",
        (
            f"N^p: time grows as tokens^p, least squares of log on log from "
            f"{report['summary']['growth_from_length']} tokens up ('-': fewer than two lengths). step: one "
            f"token after N - 1 others. state: allocated for N tokens; floats: by the papers' formula. "
            f"{settings['samples']} interleaved samples per case, fewer (n) where "
            f"{settings['seconds_budget']:g} s are spent; skipped above that or "
            f"{settings['memory_limit_gib']:.3g} GiB (reasons below)."
        ),
        left=["mixer"],
        right=["tokens", *passes, "state KiB", "floats"],
    )
    cases = {(row["candidate"], row["length"], row["pass"]): row for row in report["rows"]}
    for candidate in report["candidates"]:
        name = candidate["name"]
        for position, length in enumerate(sorted({row["length"] for row in report["rows"]})):
            rows = [cases.get((name, length, direction)) for direction in PASSES]
            cells = [cell for row in rows for cell in _cells(row, settings["samples"])]
            table.add_row("" if position else name, f"{length:,}", *cells, *_state(rows[0]))
        powers = [cell for power in _powers(report, name) for cell in (power, "", "")]
        table.add_row("", "growth", *powers, "", "", style="dim", end_section=True)
    return table


def _cells(row: dict[str, Any] | None, samples: int) -> Iterable[str]:
    if row is None:
        return "", "", ""
    if row["seconds"] is None:
        return row["status"], "", ""
    return *time_and_spread(row, samples), _count(row["tokens_per_second"])


def _state(row: dict[str, Any] | None) -> Iterable[str]:
    if row is None or row["state_bytes"] is None:
        return "", ""
    return significant(row["state_bytes"] / 1024), f"{row['state_floats']:,}"


def _count(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.0f}"


def _powers(report: dict[str, Any], name: str) -> list[str]:
    """Format how the time of each pass grows."""
    growth = {(entry["candidate"], entry["pass"]): entry for entry in report["summary"]["growth"]}
    fitted = [growth[name, direction]["time_exponent"] for direction in PASSES]
    return [exponent(p) if p is None else f"N^{exponent(p)}" for p in fitted]


def insert(page: str, report: dict[str, Any] | None) -> str:
    """Insert the report's table between the page's two comments; with None only check for them.

    Raises:
        ValueError: the page lacks one of the comments, or has them in the wrong order.
    """
    return pages.insert(page, "mixers", None if report is None else markdown(report))


def markdown(report: dict[str, Any]) -> str:
    """Return milliseconds of forward and backward at every length; the rest at the longest one."""
    lengths = report["settings"]["lengths"]
    longest = lengths[-1]
    powers_and_steps = "fwd+bwd ~", "forward ~", "forward, tokens/s", "step, ms", "step ~"
    columns = ["mixer", *(f"{n:,}" for n in lengths), *powers_and_steps, "state, KiB", "floats"]
    rows, body = report["rows"], []
    for candidate in report["candidates"]:
        name = candidate["name"]
        times = {direction: series(rows, name, direction) for direction in PASSES}
        forward, both, step = _powers(report, name)
        speed = series(rows, name, FORWARD, "tokens_per_second").get(longest)
        last = next((r for r in rows if (r["candidate"], r["length"]) == (name, longest)), None)
        both_by_length = (_milliseconds(times[FORWARD_BACKWARD].get(n)) for n in lengths)
        of_forward = both, forward, _count(speed) if speed else MISSING
        of_step = _milliseconds(times[DECODE].get(longest)), step
        body.append([name, *both_by_length, *of_forward, *of_step, *_state(last)])
    lines = [
        f"{_facts(report)}.",
        "",
        f"Forward and backward in milliseconds by tokens; the rest at {longest:,} tokens.",
        "",
        pages.table(columns, body),
    ]
    if missing := _missing(report):
        lines += ["", "; ".join(missing) + "."]
    return "\n".join(lines) + "\n"


def _milliseconds(seconds: float | None) -> str:
    return MISSING if seconds is None else significant(1000 * seconds)
