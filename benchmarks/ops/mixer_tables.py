"""The table of the `mixers` report."""

from collections.abc import Iterable
from typing import Any

from benchmarks import tables
from benchmarks.analysis import series
from benchmarks.ops.candidates import FORWARD, FORWARD_BACKWARD
from benchmarks.ops.mixer_candidates import DECODE, PASSES
from benchmarks.tables import MISSING, PASS_TITLES, exponent, milliseconds, significant

TITLES = PASS_TITLES | {DECODE: "step"}


def text(report: dict[str, Any]) -> str:
    """Return milliseconds of forward and backward at every length; the rest at the longest one."""
    settings, rows = report["settings"], report["rows"]
    lengths = settings["lengths"]
    longest = lengths[-1]
    powers_and_steps = "fwd+bwd ~", "forward ~", "forward, tokens/s", "step, ms", "step ~"
    columns = ["mixer", *(f"{n:,}" for n in lengths), *powers_and_steps, "state, KiB", "floats"]
    body = []
    for candidate in report["candidates"]:
        name = candidate["name"]
        times = {direction: series(rows, name, direction) for direction in PASSES}
        forward, both, step = _powers(report, name)
        speed = series(rows, name, FORWARD, "tokens_per_second").get(longest)
        last = next((r for r in rows if (r["candidate"], r["length"]) == (name, longest)), None)
        both_by_length = (milliseconds(times[FORWARD_BACKWARD].get(n)) for n in lengths)
        of_forward = both, forward, f"{float(f'{speed:.3g}'):,.0f}" if speed else MISSING
        of_step = milliseconds(times[DECODE].get(longest)), step
        body.append([name, *both_by_length, *of_forward, *of_step, *_state(last)])
    return tables.blocks(
        f"{settings['dtype']}: d_model {settings['d_model']}, batch {settings['batch']}; "
        f"{tables.ran_on(report, 'jax')}.",
        f"Forward and backward in milliseconds by tokens; the rest at {longest:,} tokens.",
        tables.table(columns, body),
        tables.not_measured(
            rows, lambda row: f"{row['candidate']} {TITLES[row['pass']]} at {row['length']:,} tokens"
        ),
    )


def _state(row: dict[str, Any] | None) -> Iterable[str]:
    if row is None or row["state_bytes"] is None:
        return "", ""
    return significant(row["state_bytes"] / 1024), f"{row['state_floats']:,}"


def _powers(report: dict[str, Any], name: str) -> list[str]:
    """Format how the time of each pass grows."""
    growth = {(entry["candidate"], entry["pass"]): entry for entry in report["summary"]["growth"]}
    fitted = [growth[name, direction]["time_exponent"] for direction in PASSES]
    return [exponent(p) if p is None else f"N^{exponent(p)}" for p in fitted]
