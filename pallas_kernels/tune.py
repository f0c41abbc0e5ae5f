"""`python -m pallas_kernels.tune`: measure the variants of each kernel on this GPU, keep the fastest.

For each kernel and shape of the catalogue the candidates take turns; the medians are shown side by side.
With --write the fastest becomes a row for this kind of device in the op's `tuning.json`, before those for
"any". A candidate whose results differ from the default's is never kept.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.progress import track

import pallas_kernels
from pallas_kernels import catalog, tuning
from pallas_kernels.case import Case
from pallas_kernels.flags import one_line, parse, run

PROGRAM = "python -m pallas_kernels.tune"

SAMPLE_SECONDS = 0.02
"""A sample lasts at least this long: many calls, so that launching and waiting do not count."""

ROUNDS = 5
"""At least so many samples of each contestant, whatever the budget."""

AGREEMENT = 0.03
"""Largest difference from the default's results, over the largest result: variants round bfloat16 operands
in another order, which costs some 0.005; a wrong index costs far more."""


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
            _check_writable(table_path(case.op))
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
    arguments = example(case.arguments)
    expected = jax.block_until_ready(jax.jit(case.function)(*arguments))
    contestants: dict[Hashable, Callable[[], Any]] = {}
    refused: dict[Hashable, str] = {}
    for candidate in catalog.candidates(case):
        try:
            results = jax.block_until_ready(jax.jit(candidate.function)(*arguments))
        except Exception as error:  # does not fit this GPU: the other candidates may
            refused[candidate.variant] = one_line(error)
            continue
        difference = disagreement(expected, results)
        if difference <= AGREEMENT:
            contestants[candidate.variant] = caller(candidate.function, arguments, catalog.carried(case))
        else:
            refused[candidate.variant] = f"results differ by {difference:.2g} of the largest"
    return Outcome(
        case, dict(zip(contestants, measure(list(contestants.values()), seconds), strict=True)), refused
    )


def example(arguments: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Numbers from 0 to 1 for floats, zeros for whole numbers and truths.

    With both signs a normaliser might be a small difference, and magnify harmless roundings.
    """
    keys = jax.random.split(jax.random.key(0), len(arguments))
    return [
        jax.random.uniform(key, x.shape, x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else jnp.zeros(x.shape, x.dtype)
        for key, x in zip(keys, arguments, strict=True)
    ]


def disagreement(expected: Any, results: Any) -> float:
    """Largest difference over the largest expected number, of the worst array; inf where not finite."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(results), strict=True):
        a, b = (x.astype(jnp.float32) for x in (a, b))
        difference = float(jnp.max(jnp.abs(a - b))) / max(float(jnp.max(jnp.abs(a))), 1e-30)
        worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def caller(
    function: Callable[..., Any], arguments: Sequence[jax.Array], carried: Mapping[int, int]
) -> Callable[[], Any]:
    """A function that makes one call and does not wait; carried arguments are donated and replaced.

    Without the donation a kernel that works in place would first be handed a copy of its state.
    """
    compiled = jax.jit(function, donate_argnums=tuple(carried))
    current = [jnp.copy(x) if index in carried else x for index, x in enumerate(arguments)]

    def call() -> Any:
        results = compiled(*current)
        for argument, result in carried.items():
            current[argument] = results[result]
        return results

    return call


def measure(
    contestants: Sequence[Callable[[], Any]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[Any], Any] = jax.block_until_ready,
) -> list[float]:
    """Median seconds per call of each contestant; they take turns, `seconds` for each in all.

    Taking turns lets a clock that slows down, or a busy moment of the machine, hit all alike.
    """

    def timed(call: Callable[[], Any], calls: int) -> float:
        start = clock()
        result = None
        for _ in range(calls):
            result = call()
        wait(result)
        return (clock() - start) / calls

    calls = []
    for call in contestants:
        timed(call, 1)  # compiles
        calls.append(math.ceil(SAMPLE_SECONDS / max(timed(call, 3), 1e-7)))
    samples: list[list[float]] = [[] for _ in contestants]
    spent, turn = 0.0, 0
    while turn < ROUNDS or spent < seconds * len(contestants):
        order = [(turn + i) % len(contestants) for i in range(len(contestants))]
        for i in order:
            samples[i].append(timed(contestants[i], calls[i]))
            spent += samples[i][-1] * calls[i]
        turn += 1
    return [statistics.median(taken) for taken in samples]


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
        path = table_path(op)
        _check_writable(path)
        path.write_text(as_json(with_row(json.loads(path.read_text()), row)))
        written += [] if path in written else [path]
    tuning.table.cache_clear()
    return written


def with_row(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """`rows` with `row` before others that may hold for it, in the place of one with the same conditions."""
    others = [other for other in rows if (other["device"], other["when"]) != (row["device"], row["when"])]
    devices = (row["device"], "any")
    first = next((i for i, other in enumerate(others) if other["device"] in devices), len(others))
    return [*others[:first], row, *others[first:]]


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """One row per line, which makes a readable difference."""
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


def table_path(op: str) -> Path:
    """The table's file, in the package that runs."""
    return Path(pallas_kernels.__path__[0], op, "tuning.json")


def _check_writable(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise PermissionError(f"--write: cannot write {path}; run it in a checkout of the source")


if __name__ == "__main__":
    run(PROGRAM, main)
