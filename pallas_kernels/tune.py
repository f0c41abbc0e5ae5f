"""`python -m pallas_kernels.tune`: measure the variants of each kernel on this GPU, keep the fastest.

For each kernel and shape of the catalogue the candidates take turns; the medians are shown side by side.
With --write the fastest becomes a row for this kind of device in the op's `tuning.json`, before those for
"any". A candidate whose results differ from the default's is never kept.
"""

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import tyro
from rich.console import Console
from rich.progress import track

from pallas_kernels import catalog, tuning
from pallas_kernels.case import Case
from pallas_kernels.contest import contest
from pallas_kernels.flags import parse, run

PROGRAM = "python -m pallas_kernels.tune"


@dataclass(frozen=True)
class Tune:
    """Measure the variants of the kernels on this GPU."""

    op: str | None = None
    """Only this folder of kernels, as "taylor_step"."""
    match: str = ""
    """Only cases whose name contains this."""
    seconds: float = 1.0
    """Time for each variant on each shape, besides compiling."""
    write: tyro.conf.FlagCreatePairsOff[bool] = False
    """Make the fastest variants rows of the tuning tables of this checkout."""


@dataclass(frozen=True)
class Outcome:
    """One shape: seconds per call of each candidate, or why it was left out."""

    case: Case
    seconds: Mapping[Hashable, float]
    refused: Mapping[Hashable, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Raises:
        SystemExit: status 2 for flags that do not parse, 0 after `--help`.
        ValueError: there is no GPU, or no case matches.
        OSError: `--write`, and a table cannot be written.
    """
    options = parse(Tune, argv, PROGRAM)
    if options.op not in (None, *catalog.OPS):
        raise ValueError(f"--op {options.op}: expected one of {', '.join(catalog.OPS)}")
    if not options.seconds > 0:
        raise ValueError(f"--seconds {options.seconds}: expected a positive number")
    device = tuning.device_kind()
    if device == "any":
        raise ValueError(f"needs a GPU, and jax found only {jax.devices()[0].device_kind}")
    cases = [case for case in catalog.cases(options.match) if case.default and options.op in (None, case.op)]
    if not cases:
        raise ValueError(f"no default case of {options.op or 'any op'} matches {options.match!r}")
    if options.write:
        for case in cases:
            if len(catalog.candidates(case)) > 1:
                catalog.facts(case)
            tuning.expect_writable(tuning.path(case.op))
    console, stderr = Console(), Console(stderr=True)
    outcomes = []
    for case in track(cases, "measuring", console=stderr, transient=True):
        outcomes.append(outcome(case, options.seconds))
        console.print("\n".join(describe(outcomes[-1])), highlight=False, markup=False)
    if options.write:
        for path in write(outcomes, device):
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    return 0


def outcome(case: Case, seconds: float) -> Outcome:
    """Measure every candidate of one shape."""
    functions = {candidate.variant: candidate.function for candidate in catalog.candidates(case)}
    return Outcome(case, *contest(functions, case.arguments, seconds, catalog.carried(case)))


def describe(outcome: Outcome) -> list[str]:
    """Lines for the terminal, the fastest first; the default is marked with an asterisk."""
    case = outcome.case
    lines = [f"{case.op}/{case.kernel} {case.shape}"]
    best = min(outcome.seconds.values(), default=math.nan)
    for variant, seconds in sorted(outcome.seconds.items(), key=lambda item: item[1]):
        mark = "*" if variant == case.variant else " "
        lines.append(f" {mark} {seconds * 1e6:10.1f} us  {seconds / best:5.2f}x  {variant}")
    lines += [f"   {'-':>10}            {variant}  {reason}" for variant, reason in outcome.refused.items()]
    return lines


def winner(outcomes: Sequence[Outcome]) -> Hashable:
    """The variant with the lowest mean of logarithms of its times, of those that ran on every shape.

    Raises:
        ValueError: none ran on all.
    """
    common = set.intersection(*(set(outcome.seconds) for outcome in outcomes))
    if not common:
        raise ValueError(f"no variant ran on all of {', '.join(o.case.name for o in outcomes)}")
    return min(common, key=lambda variant: sum(math.log(outcome.seconds[variant]) for outcome in outcomes))


def write(outcomes: Sequence[Outcome], device: str) -> list[Path]:
    """Put a row for each set of facts into the tables, one for shapes that share them; returns the files."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if len(outcome.seconds) + len(outcome.refused) == 1:
            continue  # nothing to choose, so the table has no such row
        facts = json.dumps(catalog.facts(outcome.case), sort_keys=True)
        groups.setdefault((outcome.case.op, facts), []).append(outcome)
    written = []
    for (op, facts), group in groups.items():
        row = {"device": device, "when": json.loads(facts), "variant": asdict(winner(group))}  # type: ignore[arg-type]
        path = tuning.path(op)
        tuning.expect_writable(path)
        path.write_text(tuning.as_json(with_row(json.loads(path.read_text()), row)))
        written += [] if path in written else [path]
    tuning.table.cache_clear()
    return written


def with_row(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """`rows` with `row` before others that may hold for it, in the place of one with the same conditions."""
    others = [other for other in rows if (other["device"], other["when"]) != (row["device"], row["when"])]
    devices = (row["device"], "any")
    first = next((i for i, other in enumerate(others) if other["device"] in devices), len(others))
    return [*others[:first], row, *others[first:]]


if __name__ == "__main__":
    run(PROGRAM, main)
