"""`mixers`: measure the cost of every sequence mixer on this machine's CPU against length, and its state."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax

from based_jax import mixers
from based_jax.validate import expect, expect_choice
from benchmarks import report, tables
from benchmarks.analysis import growth, series
from benchmarks.flags import StudyFlags, comma_list
from benchmarks.memory import GIB
from benchmarks.ops.candidates import FORWARD, FORWARD_BACKWARD
from benchmarks.ops.mixer_candidates import DECODE, PASSES, entry
from benchmarks.study import Study
from benchmarks.tables import MISSING, PASS_TITLES, exponent, milliseconds, significant


@dataclass(frozen=True)
class Mixers(StudyFlags):
    """Time, growth and state of every sequence mixer against length, on CPU in float32, batch 1.

    Forward; forward+backward (gradients of the sum of squares by parameters and input); one decoding step
    (a token after a text of that length). Also the bytes of the state as allocated and its floats by the
    papers' formulas. All mixers take turns in one run. Cases that would not fit in memory or in the time
    budget are skipped, and the table lists them. Ctrl-C keeps the measurements so far.
    """

    lengths: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (512, 1024, 2048, 4096, 8192)
    """Tokens per row."""
    seconds: float = 10.0
    """Time budget per case, in seconds: a case that would exceed it has fewer samples, or is skipped."""
    fit_from: int = 512
    """Shortest length, in tokens, that enters the fitted growth exponents."""
    mixers: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ()
    """Mixers to measure; default: all."""
    d_model: int = 512
    """Channels of the inputs and outputs."""
    samples: int = 3
    """Samples per case; the table shows their median and quartile range."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C. Raises ValueError for a wrong flag."""
        self._check()
        lengths = sorted(set(self.lengths))
        limit = self.memory_bytes(4 * lengths[-1] * self.d_model)
        entries = [entry(name, self.d_model, lengths[-1]) for name in self.mixers or mixers.names()]
        settings = {
            "d_model": self.d_model,
            "batch": 1,
            "dtype": "float32",
            "lengths": lengths,
            "samples": self.samples,
            "seconds_budget": self.seconds,
            "memory_limit_gib": round(limit / GIB, 3),
        }
        candidates = [entry.candidate() for entry in entries]
        described = [
            {"name": entry.name, "label": candidate.label, "options": entry.options}
            for entry, candidate in zip(entries, candidates, strict=True)
        ]
        results = report.new_report("mixers", command, settings, described, [])
        study = Study(self._inputs, candidates, PASSES, self.samples, self.seconds, limit, report.say)
        states = {(entry.name, length): entry.state(length) for entry in entries for length in lengths}
        measure = partial(study.measure, lengths, lambda: self._collect(results, study, states))
        return report.make(results, measure, "Sequence mixers on CPU", text, self.json)

    def _inputs(self, length: int) -> jax.Array:
        return jax.random.normal(jax.random.key(1), (1, length, self.d_model))

    def _collect(self, results: dict[str, Any], study: Study, states: dict[tuple[str, int], Any]) -> None:
        """Update the report and write it, so that a killed run keeps its numbers."""
        names = [candidate.name for candidate in study.candidates]
        rows = [
            row | {"tokens_per_second": _throughput(row)} | states[row["candidate"], row["length"]]
            for row in study.rows()
        ]
        results |= {"rows": rows, "summary": growth(rows, names, PASSES, self.fit_from)}
        if self.json:
            report.save(results, self.json)

    def _check(self) -> None:
        self.check(d_model=self.d_model, samples=self.samples)
        for name in self.mixers:
            expect_choice("--mixers", name, mixers.names())
        expect(len(set(self.mixers)) == len(self.mixers), "--mixers", ",".join(self.mixers), "each name once")


def _throughput(row: dict[str, Any]) -> float | None:
    tokens = 1 if row["pass"] == DECODE else row["length"]
    return tokens / row["seconds"] if row["seconds"] else None


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
