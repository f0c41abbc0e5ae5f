"""`mixers`: measure the cost of every sequence mixer on this machine's CPU against length, and its state."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax

from based_jax import mixers
from based_jax.validate import expect, expect_choice
from benchmarks import report
from benchmarks.analysis import growth
from benchmarks.flags import StudyFlags, comma_list
from benchmarks.memory import GIB
from benchmarks.ops import mixer_tables
from benchmarks.ops.mixer_candidates import DECODE, PASSES, entry
from benchmarks.study import Study


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
        return report.make(results, measure, "Sequence mixers on CPU", mixer_tables.text, self.json)

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
