"""Exponents and crossovers on made-up timings with known answers."""

import pytest

from benchmarks.analysis import crossover, growth_exponent, series

LENGTHS = (512, 1024, 2048, 4096)


def row(candidate, length, seconds):
    return {"candidate": candidate, "pass": "forward", "length": length, "seconds": seconds}


def test_exponents():
    for power in (0.0, 1.0, 1.5, 2.0):
        assert growth_exponent({n: 3e-6 * n**power for n in LENGTHS}) == pytest.approx(power, abs=1e-12)
    times = {64: 1.0, 128: 1.0, 2048: 2.0, 4096: 4.0}
    assert growth_exponent(times, start=2048) == pytest.approx(1.0)
    assert growth_exponent(times) < 1
    # log2 time 0, 1, 5 at log2 length 0, 1, 2: the slope of least squares is (5 - 0) / 2.
    assert growth_exponent({1: 1.0, 2: 2.0, 4: 32.0}) == pytest.approx(2.5)
    for few in ({}, {2048: 1.0}, {512: 1.0, 1024: 2.0, 2048: 4.0}):
        assert growth_exponent(few, start=2048) is None


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ((1, 1, 1, 1), None),  # never faster
        ((3, 3, 3, 3), 512),  # always faster
        ((3, 1, 3, 3), 2048),  # an early win that does not last does not count
        ((1, 3, 3, 1), None),  # nor one that is lost again
        ((1, 1, 2, 3), 4096),  # a tie is not faster
    ],
)
def test_crossover(theirs, expected):
    ours = dict.fromkeys(LENGTHS, 2.0)
    assert crossover(ours, dict(zip(LENGTHS, theirs, strict=True))) == expected


def test_only_lengths_that_both_have_are_compared():
    assert crossover({512: 2.0, 1024: 2.0, 2048: 2.0}, {512: 1.0, 1024: 3.0}) == 1024
    assert crossover({512: 1.0}, {}) is None


def test_series_is_sorted_and_leaves_out_what_was_not_measured():
    rows = [row("a", 1024, 2.0), row("a", 512, 1.0), row("a", 2048, None), row("b", 512, 9.0)]
    assert list(series(rows, "a", "forward").items()) == [(512, 1.0), (1024, 2.0)]
    assert series(rows, "a", "forward_backward") == {}
