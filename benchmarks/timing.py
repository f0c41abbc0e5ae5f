"""Time programs fairly: warm up, interleave the candidates, stop at a budget, skip cases that cannot finish.

The candidates of one size take turns, one sample each per round in a rotating order, so that noise of the
machine affects all alike. A sample of a quick program is the mean of several calls.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from benchmarks.machine import GIB

MIN_SAMPLE_SECONDS = 0.02
"""A sample lasts at least this long (one call, or the mean of several)."""

PAUSE_SECONDS = 0.02
"""Least pause after a sample: thread pools keep spinning and scratch memory is freed in the background, which
would add to the next candidate's time. After long samples the pause is a tenth of their length."""


_Entry = TypeVar("_Entry")


@dataclass
class Timing:
    """The samples of one program, taken until `budget` seconds are spent."""

    budget: float
    clock: Callable[[], float] = time.perf_counter
    wait: Callable[[Any], Any] = lambda result: None
    """waits for the result of the last of several asynchronous calls"""
    samples: list[float] = field(default_factory=list)
    """seconds per call"""
    calls: int = 1
    """calls per sample"""
    per_call: int = 1
    """operations per call: the times are those of one"""
    spent: float = 0.0
    cold: bool = False
    """whether the only sample is the first call, because the budget allows no other"""

    def warm_up(self, call: Callable[[], Any]) -> None:
        """Choose the calls per sample. The time counts only if the budget allows no other call."""
        seconds = self.timed(call)
        if self.spent + seconds > self.budget:
            self.samples, self.cold = [seconds], True
        elif self.spent < self.budget / 10:  # the first call also paid for fresh pages and threads
            seconds = self.timed(call)
        self.calls = calls_per_sample(seconds)

    def sample(self, call: Callable[[], Any]) -> None:
        """Take one more sample, unless the budget is spent."""
        typical = self.calls * float(np.median(self.samples)) if self.samples else 0.0
        if self.cold or self.spent + typical > self.budget:
            return
        if self.spent < self.budget / 10:
            # Untimed: the previous candidate has evicted the caches and taken the huge pages.
            self.timed(call)
        self.samples.append(self.timed(call, self.calls))

    def timed(self, call: Callable[[], Any], calls: int = 1) -> float:
        """Return the mean seconds of an operation, over so many calls."""
        start, result = self.clock(), None
        for _ in range(calls):
            result = call()
        self.wait(result)
        seconds = self.clock() - start
        self.spent += seconds
        return seconds / (calls * self.per_call)

    def statistics(self) -> dict[str, Any]:
        """Return median and spread (quartile range over median) of the seconds per call; None if empty."""
        low, median, high = (float(x) for x in np.percentile(self.samples or [math.nan], (25, 50, 75)))
        return {
            "seconds": median if self.samples else None,
            "spread": (high - low) / median if self.samples else None,
            "seconds_min": min(self.samples, default=None),
            "seconds_max": max(self.samples, default=None),
            "samples": len(self.samples),
            "calls_per_sample": self.calls,
            "cold": self.cold,
        }


def calls_per_sample(seconds: float, most: int = 100) -> int:
    """Return the calls of so many seconds per sample: 1 to `most`."""
    return min(most, math.ceil(MIN_SAMPLE_SECONDS / max(seconds, 1e-9)))


def in_turn(entries: Sequence[_Entry], turn: int) -> list[_Entry]:
    """Return the entries in the order of a turn: each turn begins one further on."""
    first = turn % max(1, len(entries))
    return [*entries[first:], *entries[:first]]


def interleave(
    entries: Sequence[tuple[Timing, Callable[[], Any]]],
    repeats: int,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take up to `repeats` samples of each (warmed-up) entry, in turns with a rotating start."""
    for turn in range(repeats):
        for timing, call in in_turn(entries, turn):
            before = timing.spent
            timing.sample(call)
            sleep(min(max(PAUSE_SECONDS, 0.1 * (timing.spent - before)), 2.0))


def extrapolate(history: Sequence[tuple[int, float]], length: int) -> float | None:
    """Predict the seconds at `length` by the power law through the last two measured (length, seconds).

    With one measurement growth is taken as quadratic, the worst of the candidates; None with no measurement.
    """
    if not history:
        return None
    last_length, last_seconds = history[-1]
    exponent = 2.0
    if len(history) > 1:
        length_before, seconds_before = history[-2]
        exponent = math.log(last_seconds / seconds_before) / math.log(last_length / length_before)
        exponent = min(max(exponent, 0.0), 3.0)  # noise at small lengths must not give absurd exponents
    return last_seconds * (length / last_length) ** exponent


def skip_reason(
    needed_bytes: int | None, memory_limit: float, expected_seconds: float | None, budget: float
) -> str | None:
    """Return why a case must not be run, or None; memory first, as a lack of it ends the whole process."""
    if needed_bytes is not None and needed_bytes > memory_limit:
        return f"needs {_show(needed_bytes / GIB)} GiB"
    if expected_seconds is not None and expected_seconds > budget:
        return f"would take {_show(expected_seconds)} s"
    return None


def _show(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
