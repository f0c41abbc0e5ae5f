"""Measure candidates over lengths: compile, decide what can run, warm up, take turns, keep every number."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from benchmarks.machine import cores
from benchmarks.memory import with_peak
from benchmarks.ops.candidates import FORWARD_BACKWARD, Candidate, Program
from benchmarks.timing import Timing, extrapolate, interleave, skip_reason


@dataclass
class Case:
    """One candidate at one length in one pass."""

    candidate: Candidate
    direction: str
    length: int
    timing: Timing
    program: Program | None = None
    skipped: str | None = None
    """why it was not run"""
    peak_bytes: int | None = None

    def row(self) -> dict[str, Any]:
        """Return the case JSON-ready, always with every key."""
        status = "measured" if self.timing.samples else "interrupted"
        status = "skipped" if self.skipped else status
        program = self.program or Program(call=lambda: None, to_numpy=list)
        return {
            "candidate": self.candidate.name,
            "pass": self.direction,
            "length": self.length,
            "status": status,
            "reason": self.skipped,
            **self.timing.statistics(),
            "compile_seconds": program.compile_seconds,
            "temp_bytes": program.temp_bytes,
            "needed_bytes": program.needed_bytes,
            "peak_rss_bytes": self.peak_bytes,
        }


@dataclass
class Study:
    """What to measure, under which limits, and the results so far (also after an interruption)."""

    inputs: Callable[[int], Any]
    """length -> the argument of the candidates' `prepare`"""
    candidates: Sequence[Candidate]
    passes: Sequence[str]
    repeats: int
    budget: float
    """seconds per case"""
    memory_limit: float
    """bytes per case"""
    log: Callable[[str], None]
    """receives a line of progress"""
    compilers: int = field(default_factory=cores)
    """programs compiled at a time; with 1, none waits for a core"""
    cases: list[Case] = field(default_factory=list)
    agreement: list[dict[str, Any]] = field(default_factory=list)
    """largest difference between the members of a family, at each length"""

    def measure(self, lengths: Sequence[int], collect: Callable[[], None]) -> bool:
        """Measure all lengths, ascending, with `collect` after each; return False after Ctrl-C."""
        try:
            with _on_cpu():
                for length in lengths:
                    self.measure_length(length)
                    collect()
        except KeyboardInterrupt:
            collect()
            return False
        return True

    def measure_length(self, length: int) -> None:
        """Measure all cases of one length, interleaved. Lengths must come in ascending order."""
        inputs = self.inputs(length)
        live, firsts = [], {}
        cases = [
            Case(candidate, direction, length, Timing(self.budget))
            for candidate in self.candidates
            for direction in self.passes
        ]
        for case, program in zip(cases, self._compile(cases, inputs), strict=True):
            self.cases.append(case)
            if program:
                self._warm_up(case, program, firsts)
            if case.skipped:
                self.log(f"N={length} {case.candidate.name} {case.direction}: skipped, {case.skipped}")
            elif program:
                live.append((case.timing, program.call))
        self.log(f"N={length}: {len(live)} programs compiled and warm, now in turns")
        interleave(live, self.repeats)

    def rows(self) -> list[dict[str, Any]]:
        """Return every case so far, as JSON."""
        return [case.row() for case in self.cases]

    def _compile(self, cases: Sequence[Case], inputs: Any) -> list[Program | None]:
        """Compile a program for each case that can run, before anything is timed."""

        def prepare(case: Case) -> Program | None:
            with _on_cpu():  # the default device is per thread
                return self._prepare(case, inputs)

        with ThreadPoolExecutor(self.compilers) as pool:
            return list(pool.map(prepare, cases))

    def _prepare(self, case: Case, inputs: Any) -> Program | None:
        """Compile a case, unless it cannot run. The case keeps the program's facts, not its arrays."""
        case.skipped = case.candidate.lacks.get(case.direction)
        if case.skipped:
            return None
        expected = extrapolate(self._history(case.candidate, case.direction), case.length)
        program = case.candidate.prepare(inputs, case.direction)
        case.program = replace(program, call=lambda: None, to_numpy=list)
        case.skipped = skip_reason(program.needed_bytes, self.memory_limit, expected, self.budget)
        return None if case.skipped else program

    def _warm_up(self, case: Case, program: Program, firsts: dict[str, tuple[str, list[np.ndarray]]]) -> None:
        """Make the first calls: measure peak memory, and compare the numbers with the first of the family."""
        try:
            result, case.peak_bytes = with_peak(lambda: case.timing.first_call(program.call))
        except (MemoryError, RuntimeError) as error:  # JAX's and torch's own errors are RuntimeErrors
            if not isinstance(error, MemoryError) and not re.search(r"RESOURCE_EXHAUSTED|memory", str(error)):
                raise
            case.skipped = "out of memory"
            return
        family = case.candidate.family
        if case.direction == FORWARD_BACKWARD and family:
            name, arrays = case.candidate.name, program.to_numpy(result)
            first, wanted = firsts.setdefault(family, (name, arrays))
            if first != name:
                error = relative_error(wanted, arrays)
                self.agreement.append(
                    {"candidate": name, "other": first, "length": case.length, "relative_error": error}
                )
        del result
        case.timing.second_call(program.call)

    def _history(self, candidate: Candidate, direction: str) -> list[tuple[int, float]]:
        """Return (length, median seconds) of the shorter lengths."""
        return [
            (case.length, float(np.median(case.timing.samples)))
            for case in self.cases
            if case.candidate is candidate and case.direction == direction and case.timing.samples
        ]


def _on_cpu() -> Any:
    return jax.default_device(jax.devices("cpu")[0])


def relative_error(wanted: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> float | None:
    """Return the largest difference of any array, relative to its largest value; None if not finite."""
    pairs = zip(wanted, got, strict=True)
    error = max(float(np.abs(x - y).max() / np.abs(x).max()) for x, y in pairs)
    return error if np.isfinite(error) else None
