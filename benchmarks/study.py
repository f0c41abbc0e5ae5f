"""Measure contestants over lengths: compile, decide what can run, warm up, take turns, keep every number."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.contestants import FORWARD_BACKWARD, PASSES, Contestant, Inputs, Program
from benchmarks.memory import with_peak
from benchmarks.shapes import OpShape
from benchmarks.timing import Timing, extrapolate, interleave, skip_reason


@dataclass
class Case:
    """One contestant at one length in one pass."""

    contestant: Contestant
    direction: str
    length: int
    timing: Timing
    program: Program | None = None
    skipped: str | None = None
    """why it was not run"""
    peak_bytes: int | None = None

    def row(self) -> dict[str, Any]:
        """JSON-ready, every key always there."""
        status = "skipped" if self.skipped else "measured" if self.timing.samples else "interrupted"
        program = self.program or Program(call=lambda: None, to_numpy=list)
        return {
            "contestant": self.contestant.name,
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
    """What to measure, under which limits, and what was measured so far (also after an interruption)."""

    shape: OpShape
    contestants: Sequence[Contestant]
    repeats: int
    budget: float
    """seconds per case"""
    memory_limit: float
    """bytes per case"""
    tell: Callable[[str], None]
    """receives a line of progress"""
    cases: list[Case] = field(default_factory=list)
    agreement: list[dict[str, Any]] = field(default_factory=list)
    """how far the members of a family differ, at each length"""

    def measure_length(self, length: int) -> None:
        """All cases of one length, interleaved. Lengths must come in ascending order."""
        inputs = Inputs(self.shape, length)
        live, firsts = [], {}
        for contestant in self.contestants:
            for direction in PASSES:
                expected = extrapolate(self._history(contestant, direction), length)
                case = Case(contestant, direction, length, Timing(self.budget))
                self.cases.append(case)
                case.program = contestant.prepare(inputs, direction)
                case.skipped = skip_reason(
                    case.program.needed_bytes, self.memory_limit, expected, self.budget
                )
                if not case.skipped:
                    self._warm_up(case, case.program, firsts)
                if case.skipped:
                    self.tell(f"N={length} {contestant.name} {direction}: skipped, {case.skipped}")
                else:
                    live.append((case.timing, case.program.call))
        self.tell(f"N={length}: {len(live)} programs compiled and warm, now in turns")
        interleave(live, self.repeats)

    def rows(self) -> list[dict[str, Any]]:
        """Every case so far, as JSON."""
        return [case.row() for case in self.cases]

    def _warm_up(self, case: Case, program: Program, firsts: dict[str, tuple[str, list[np.ndarray]]]) -> None:
        """The first calls: peak memory, and whether the numbers agree with the first of the family."""
        try:
            result, case.peak_bytes = with_peak(lambda: case.timing.first_call(program.call))
        except (MemoryError, RuntimeError) as error:  # JAX's and torch's own errors are RuntimeErrors
            if not isinstance(error, MemoryError) and not re.search(r"RESOURCE_EXHAUSTED|memory", str(error)):
                raise
            case.skipped = "out of memory"
            return
        if case.direction == FORWARD_BACKWARD:
            name, arrays = case.contestant.name, program.to_numpy(result)
            first, wanted = firsts.setdefault(case.contestant.family, (name, arrays))
            if first != name:
                error = relative_error(wanted, arrays)
                self.agreement.append(
                    {"contestant": name, "other": first, "length": case.length, "relative_error": error}
                )
        del result
        case.timing.second_call(program.call)

    def _history(self, contestant: Contestant, direction: str) -> list[tuple[int, float]]:
        """(length, median seconds) of the lengths before."""
        return [
            (case.length, float(np.median(case.timing.samples)))
            for case in self.cases
            if case.contestant is contestant and case.direction == direction and case.timing.samples
        ]


def relative_error(wanted: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> float | None:
    """Largest difference of any array, relative to that array's largest value; None if not finite."""
    pairs = zip(wanted, got, strict=True)
    error = max(float(np.abs(x - y).max() / np.abs(x).max()) for x, y in pairs)
    return error if np.isfinite(error) else None
