"""Measure candidates over lengths: compile, decide what can run, warm up, take turns, keep every number."""

import importlib.util
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from based_jax.validate import expect, expect_writable
from benchmarks import report
from benchmarks.flags import expect_counts, expect_items, flag_of
from benchmarks.machine import GIB, available_bytes
from benchmarks.report import Report
from benchmarks.timing import Timing, extrapolate, interleave, skip_reason

FORWARD = "forward"
FORWARD_BACKWARD = "forward_backward"
"""Passes of ops and mixers: the output; the output and gradients."""


@dataclass(frozen=True)
class Program:
    """One candidate, compiled for one length and pass."""

    call: Callable[[], Any]
    """runs it once and returns when it is done"""
    compile_seconds: float | None = None
    temp_bytes: int | None = None
    """scratch memory that the compiler planned; None without a compiler's plan"""
    needed_bytes: int | None = None
    """scratch memory, arguments and results (an estimate without a compiler's plan)"""


@dataclass(frozen=True)
class Candidate:
    """A row of the table."""

    name: str
    label: str
    framework: str
    prepare: Callable[[int, str], Program]
    """compiles it for a length and a pass"""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """pass that it lacks -> why"""


def compile_jitted(
    function: Any, arguments: list[Any], carried: int | None = None, result: int = -1
) -> Program:
    """Compile a jitted function for its arguments; the result `result` replaces the donated `carried`."""
    start = time.perf_counter()
    compiled = function.lower(*arguments).compile()
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    temp = needed = None
    if memory is not None:  # a donated argument shares memory with its result
        temp = memory.temp_size_in_bytes
        needed = temp + memory.argument_size_in_bytes + memory.output_size_in_bytes
        needed -= memory.alias_size_in_bytes

    def call() -> Any:
        results = jax.block_until_ready(compiled(*arguments))
        if carried is not None:
            arguments[carried] = results[result]
        return results

    return Program(call, compile_seconds=seconds, temp_bytes=temp, needed_bytes=needed)


def without_torch(passes: Sequence[str]) -> dict[str, str]:
    """Return what candidates in torch lack: all passes, if torch is not installed."""
    return {} if importlib.util.find_spec("torch") else dict.fromkeys(passes, "torch is not installed")


NOTHING = Program(call=lambda: None)


@dataclass
class Case:
    """One candidate at one length in one pass."""

    candidate: Candidate
    direction: str
    length: int
    timing: Timing
    program: Program = NOTHING
    """what was compiled, without its arrays"""
    skipped: str | None = None
    """why it was not run"""

    def row(self) -> dict[str, Any]:
        """Return the case JSON-ready, always with every key."""
        status = "measured" if self.timing.samples else "interrupted"
        return {
            "candidate": self.candidate.name,
            "pass": self.direction,
            "length": self.length,
            "status": "skipped" if self.skipped else status,
            "reason": self.skipped,
            **self.timing.statistics(),
            "compile_seconds": self.program.compile_seconds,
            "temp_bytes": self.program.temp_bytes,
            "needed_bytes": self.program.needed_bytes,
        }


@dataclass
class Study:
    """What to measure, under which limits, and the results so far (also after an interruption)."""

    candidates: Sequence[Candidate]
    passes: Sequence[str]
    samples: int
    budget: float
    """seconds per case"""
    memory_limit: float
    """bytes per case"""
    name: str = ""
    """of progress"""
    cases: list[Case] = field(default_factory=list)

    def measure_length(self, length: int) -> None:
        """Measure all cases of one length, interleaved. Lengths must come in ascending order."""
        cases = [
            Case(candidate, direction, length, Timing(self.budget))
            for candidate in self.candidates
            for direction in self.passes
        ]
        programs = [self._prepare(case) for case in cases]
        live = []
        for case, program in zip(cases, programs, strict=True):
            self.cases.append(case)
            if program:
                self._warm_up(case, program)
            if case.skipped:
                self._log(length, f"{case.candidate.name} {case.direction}: skipped, {case.skipped}")
            elif program:
                live.append((case.timing, program.call))
        self._log(length, f"{len(live)} programs compiled and warm, now in turns")
        interleave(live, self.samples)

    def rows(self) -> list[dict[str, Any]]:
        """Return every case so far, as JSON."""
        return [case.row() for case in self.cases]

    def _log(self, length: int, text: str) -> None:
        report.say(" ".join(filter(None, (self.name, f"N={length}", text))))

    def _prepare(self, case: Case) -> Program | None:
        """Compile a case, unless it cannot run. The case keeps the program's facts, not its arrays."""
        case.skipped = case.candidate.lacks.get(case.direction)
        if case.skipped:
            return None
        expected = extrapolate(self._history(case.candidate, case.direction), case.length)
        program = case.candidate.prepare(case.length, case.direction)
        case.program = replace(program, call=NOTHING.call)
        case.skipped = skip_reason(program.needed_bytes, self.memory_limit, expected, self.budget)
        return None if case.skipped else program

    def _warm_up(self, case: Case, program: Program) -> None:
        """Make the first calls."""
        try:
            case.timing.warm_up(program.call)
        except (MemoryError, RuntimeError) as error:  # JAX's and torch's own errors are RuntimeErrors
            if not isinstance(error, MemoryError) and not re.search(r"RESOURCE_EXHAUSTED|memory", str(error)):
                raise
            case.skipped = "out of memory"

    def _history(self, candidate: Candidate, direction: str) -> list[tuple[int, float]]:
        """Return (length, median seconds) of the shorter lengths."""
        return [
            (case.length, float(np.median(case.timing.samples)))
            for case in self.cases
            if case.candidate is candidate and case.direction == direction and case.timing.samples
        ]


@dataclass(frozen=True)
class Flags:
    """Flags of every command that measures on a CPU."""

    json: Path | None = None
    """Write every number and the facts about the machine into this file."""
    seconds: float = 30.0
    """Time budget per case, in seconds: a case that would exceed it has fewer samples, or is skipped."""
    samples: int = 5
    """Samples per case; the tables show their median."""
    memory_limit: float | None = None
    """Skip cases that need more than this, in GiB; half of the available RAM by default."""

    def check(self, *counts: str, **known: Sequence[Any]) -> None:
        """Check these flags, and a command's own.

        Args:
            counts: see `expect_counts`.
            known: see `expect_items`.

        Raises:
            ValueError: a wrong value, or a file that cannot be written.
        """
        expect_counts(self, "samples", *counts)
        expect_items(self, **known)
        for name, unit in (("seconds", "seconds"), ("memory_limit", "GiB")):
            value = getattr(self, name)
            expect(value is None or 0 < value < math.inf, flag_of(name), value, f"more than 0 {unit}")
        expect_writable(self, "json")

    @property
    def limit(self) -> float:
        """The memory limit in GiB."""
        return self.memory_limit or round(available_bytes() / 2 / GIB, 3)

    def expect_inputs_fit(self, length: int, size: int) -> None:
        """Raise ValueError unless inputs of `size` bytes at the longest length fit into the memory limit."""
        expected = f"a length whose inputs alone ({size / GIB:.1f} GiB) fit into the memory limit"
        expect(size < self.limit * GIB, "--lengths", length, expected)

    def new_report(
        self, benchmark: str, command: str, settings: dict[str, Any], described: list[dict[str, Any]]
    ) -> Report:
        """Return an empty report with these flags and a command's own settings."""
        limits = {"seconds_budget": self.seconds, "memory_limit_gib": self.limit}
        shared = {"dtype": "float32", "samples": self.samples, **limits}
        return report.new_report(benchmark, command, {**settings, **shared}, described, [])

    def study(
        self, results: Report, candidates: Sequence[Candidate], passes: Sequence[str], **options: Any
    ) -> Study:
        """Return a study with the limits of a report; `options` are further fields."""
        limit = results["settings"]["memory_limit_gib"] * GIB
        return Study(candidates, passes, self.samples, self.seconds, limit, **options)

    def measure(
        self,
        results: Report,
        sweeps: Iterable[tuple[Study, Sequence[int]]],
        rows: Callable[[], list[dict[str, Any]]],
        title: str,
        text: Callable[[Report], str],
    ) -> int:
        """Measure into a report, which is on disk after each length; print it and return the exit status.

        Args:
            sweeps: studies and their lengths, ascending; one is measured before the next is asked for.
            rows: returns those of the report so far.
            text: a report's tables, in Markdown.
        """

        def measure() -> bool:
            try:
                with jax.default_device(jax.devices("cpu")[0]):
                    for study, lengths in sweeps:
                        for length in lengths:
                            study.measure_length(length)
                            results["rows"] = rows()
                            if self.json:
                                report.save(results, self.json)
            finally:
                results["rows"] = rows()
            return True

        return report.make(results, measure, title, text, self.json)
