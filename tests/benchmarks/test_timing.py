"""Budgets, turns, extrapolation and skipping, with a clock that only moves when a program runs."""

import math

import pytest

from benchmarks.machine import GIB, available_bytes
from benchmarks.timing import Timing, extrapolate, interleave, skip_reason


class Clock:
    """Time passes only inside `call`."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now

    def program(self, seconds, name=""):
        def call():
            self.now += seconds
            self.log.append(name)
            return name

        return call


def timed(clock, seconds, budget, repeats=5):
    timing, call = Timing(budget, clock), clock.program(seconds)
    timing.warm_up(call)
    interleave([(timing, call)], repeats, sleep=lambda seconds: None)
    return timing


@pytest.mark.parametrize(
    ("seconds", "budget", "samples", "cold"),
    [
        (1.0, 100.0, 5, False),
        (1.0, 4.0, 3, False),  # fewer where the budget ends
        (3.0, 4.0, 1, True),  # the first call counts where there is no time for another
    ],
)
def test_samples_within_the_budget(seconds, budget, samples, cold):
    clock = Clock()
    timing = timed(clock, seconds, budget)
    assert timing.samples == [seconds] * samples
    assert timing.cold == cold
    assert clock.now <= budget
    assert timing.statistics()["spread"] == 0.0


def test_quick_programs_are_called_often_per_sample():
    timing = timed(Clock(), seconds=1e-3, budget=10.0)
    assert timing.calls in (20, 21)
    assert timing.samples == pytest.approx([1e-3] * 5)


def test_candidates_take_turns_and_each_begins_once():
    clock = Clock()
    entries = [(Timing(100.0, clock), clock.program(1.0, name)) for name in "abc"]
    interleave(entries, 3, sleep=lambda seconds: None)
    assert "".join(clock.log) == "aabbccbbccaaccaabb"  # an untimed call, then the sample


def test_statistics():
    statistics = Timing(1.0, samples=[1.0, 2.0, 3.0, 4.0, 9.0]).statistics()
    assert statistics["seconds"] == 3.0
    assert statistics["spread"] == pytest.approx(2 / 3)
    assert (statistics["seconds_min"], statistics["seconds_max"], statistics["samples"]) == (1.0, 9.0, 5)
    assert Timing(1.0).statistics()["seconds"] is None


def test_extrapolation():
    assert extrapolate([], 1024) is None
    assert extrapolate([(512, 1.0)], 1024) == pytest.approx(4.0)  # quadratic until the growth is known
    assert extrapolate([(512, 1.0), (1024, 2.0)], 4096) == pytest.approx(8.0)
    assert extrapolate([(256, 9.0), (512, 1.0), (1024, 4.0)], 2048) == pytest.approx(16.0)  # the last two
    assert extrapolate([(512, 2.0), (1024, 1.0)], 2048) == pytest.approx(1.0)  # never a promise to get faster


def test_skipping():
    assert skip_reason(GIB, 2 * GIB, 1.0, 60.0) is None
    assert skip_reason(None, 2 * GIB, None, 60.0) is None
    assert skip_reason(3 * GIB, 2 * GIB, math.inf, 60.0) == "needs 3 GiB"
    assert skip_reason(GIB, 2 * GIB, 75.0, 60.0) == "would take 75 s"


def test_there_is_memory():
    assert GIB / 100 < available_bytes() < 10000 * GIB
