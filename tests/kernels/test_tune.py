"""Measuring, choosing and writing, without a GPU: a clock of our own and toy functions."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import catalog, contest, tune, tuning
from pallas_kernels.case import Case
from pallas_kernels.tune import Outcome
from tests.kernels.toy import Variant
from tests.subprocesses import run_module

DEFAULT, WIDE, NARROW = Variant(), Variant(warps=8), Variant(warps=2)
ANY = {"device": "any", "when": {"size": [1, 64]}, "variant": {"chunk": 64, "warps": 4}}
H100 = {"device": "NVIDIA H100", "when": {"size": 4}, "variant": {"chunk": 32, "warps": 4}}


def _case(variant: Variant = DEFAULT, function=lambda x: (x + 1,), shape: str = "N4") -> Case:
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    return Case("toy", "gram", shape, variant, function, (x,), default=variant == DEFAULT)


class Clock:
    """Time that passes only in calls."""

    def __init__(self):
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contestant(self, name: str, *seconds: float):
        """Calls take `seconds` in turn, the last of them from then on."""
        remaining = list(seconds)

        def call() -> None:
            self.log.append(name)
            self.now += remaining.pop(0) if len(remaining) > 1 else remaining[0]

        return call


def _measure(clock: Clock, contestants, seconds: float) -> list[float]:
    return contest.measure(contestants, seconds, clock=clock, wait=lambda result: None)


def test_medians_do_not_count_the_compilation():
    clock = Clock()
    contestants = [clock.contestant("a", 5.0, 0.25), clock.contestant("b", 9.0, 0.5)]
    assert _measure(clock, contestants, 1.0) == [0.25, 0.5]


def test_one_slow_sample_does_not_matter():
    clock = Clock()
    slow_once = clock.contestant("a", *[0.1] * 6, 3.0, 0.1)
    assert _measure(clock, [slow_once], 0.1) == [pytest.approx(0.1)]


def test_contestants_take_turns_that_begin_elsewhere():
    clock = Clock()
    _measure(clock, [clock.contestant(name, 0.5) for name in "abc"], 0.5)
    rounds = "".join(clock.log[3 * 4 :])  # behind one call to compile and three to choose the number of calls
    assert rounds == "abcbcacababcbca"[: len(rounds)]
    assert len(rounds) == 3 * contest.ROUNDS


def test_quick_calls_are_repeated_within_a_sample():
    clock = Clock()
    (seconds,) = _measure(clock, [clock.contestant("a", 1e-3)], 0.001)
    assert seconds == pytest.approx(1e-3)
    assert len(clock.log) == 4 + 20 * contest.ROUNDS


def test_the_budget_is_for_each_contestant():
    clock = Clock()
    _measure(clock, [clock.contestant(name, 0.25) for name in "ab"], 3.0)
    assert clock.now == pytest.approx(2 * (4 * 0.25 + 3.0))


@pytest.fixture
def toys(monkeypatch):
    """The toy op has three more candidates: one wrong, one that fails, one sound."""

    def fail(x):
        raise RuntimeError("out of shared memory\nby far")

    candidates = [
        _case(WIDE, lambda x: (1 + x,)),
        _case(NARROW, lambda x: (x * 1.1 + 1,)),
        _case(Variant(chunk=128), fail),
    ]
    monkeypatch.setattr(catalog, "candidates", lambda case: [case, *candidates])
    monkeypatch.setattr(catalog, "carried", lambda case: {0: 0})
    monkeypatch.setattr(catalog, "facts", lambda case: {"size": 4})


def test_wrong_and_failing_candidates_are_refused(toys):
    outcome = tune.outcome(_case(), 0.001)
    assert set(outcome.seconds) == {DEFAULT, WIDE}
    assert all(0 < seconds < 1 for seconds in outcome.seconds.values())
    assert outcome.refused[NARROW].startswith("results differ by 0.0")
    assert outcome.refused[Variant(chunk=128)] == "RuntimeError: out of shared memory"


def test_the_description_has_the_fastest_first_and_the_reasons():
    outcome = Outcome(_case(), {DEFAULT: 2e-3, WIDE: 1e-3}, {NARROW: "results differ"})
    title, first, second, third = tune.describe(outcome)
    assert title == "toy/gram N4"
    assert first.split()[:3] == ["1000.0", "us", "1.00x"]
    assert second.split()[:4] == ["*", "2000.0", "us", "2.00x"]
    assert third.endswith("results differ")


def test_carried_arguments_are_replaced_by_the_results():
    start = jnp.zeros(3)
    call = contest.caller(lambda x, y: (y, x + y), [start, jnp.ones(3)], {0: 1})
    for expected in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(call()[1], np.full(3, expected))
    np.testing.assert_array_equal(start, np.zeros(3))


@pytest.mark.parametrize(
    ("results", "expected"),
    [([1.0, 2.0], 0.0), ([1.0, 2.5], 0.25), ([1.0, np.nan], np.inf), ([np.inf, 2.0], np.inf)],
)
def test_disagreement(results, expected):
    assert contest.disagreement((jnp.array([1.0, 2.0]),), (jnp.array(results),)) == expected


def test_results_that_are_zero_agree_with_themselves():
    assert contest.disagreement(jnp.zeros(2), jnp.zeros(2)) == 0


def test_example_arguments():
    x, n, flag = contest.example(
        [
            jax.ShapeDtypeStruct((64,), jnp.bfloat16),
            jax.ShapeDtypeStruct((2,), jnp.int32),
            jax.ShapeDtypeStruct((2,), jnp.bool_),
        ]
    )
    assert (x.dtype, n.dtype, flag.dtype) == (jnp.bfloat16, jnp.int32, jnp.bool_)
    assert 0 <= float(x.min()) < 0.25 < 0.75 < float(x.max()) <= 1
    assert not n.any()
    assert not flag.any()


def test_the_winner_is_best_over_all_shapes_that_share_a_row():
    first = Outcome(_case(), {DEFAULT: 1.0, WIDE: 0.9, NARROW: 0.5}, {})
    second = Outcome(_case(shape="N8"), {DEFAULT: 1.0, WIDE: 2.0}, {NARROW: "fails"})
    assert tune.winner([first]) == NARROW
    assert tune.winner([first, second]) == DEFAULT
    with pytest.raises(ValueError, match="no variant ran on all of toy/gram N4"):
        tune.winner([first, replace(second, seconds={})])


def test_a_row_goes_before_those_that_might_hold_instead():
    row = {"device": "NVIDIA H200", "when": {"size": 4}, "variant": {"warps": 8}}
    broad = {**row, "when": {"size": [1, 9]}}
    assert tune.with_row([H100, ANY], row) == [H100, row, ANY]
    assert tune.with_row([H100, broad, ANY], row) == [H100, row, broad, ANY]
    assert tune.with_row([H100, {**row, "variant": {"warps": 1}}, ANY], row) == [H100, row, ANY]
    assert tune.with_row([], row) == [row]


def test_the_winner_is_written_and_chosen(toys, tmp_path, monkeypatch):
    path = tmp_path / "tuning.json"
    path.write_text(tuning.as_json([H100, ANY]))
    monkeypatch.setattr(tuning, "path", lambda op: path)
    outcomes = [
        Outcome(_case(), {DEFAULT: 2.0, WIDE: 1.0}, {}),
        Outcome(_case(shape="N5"), {DEFAULT: 2.0, WIDE: 1.5}, {}),
    ]
    assert tune.write(outcomes, "NVIDIA H200") == [path]
    assert [json.loads(line.rstrip(",")) for line in path.read_text().splitlines()[1:-1]] == [
        H100,
        {"device": "NVIDIA H200", "when": {"size": 4}, "variant": {"chunk": 64, "warps": 8, "stages": 1}},
        ANY,
    ]
    monkeypatch.setattr(tuning, "table", lambda op: json.loads(path.read_text()))
    assert tuning.choose("toy", Variant, device="NVIDIA H200", size=4) == WIDE
    assert tuning.choose("toy", Variant, device="NVIDIA H200", size=5) == DEFAULT


def test_a_kernel_with_one_variant_gets_no_row(toys, monkeypatch):
    monkeypatch.setattr(tuning, "path", lambda op: pytest.fail("nothing to write"))
    assert tune.write([Outcome(_case(), {DEFAULT: 1.0}, {})], "NVIDIA H200") == []


def test_a_table_that_cannot_be_written_is_an_error(toys, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "path", lambda op: tmp_path / "none" / "tuning.json")
    with pytest.raises(PermissionError, match="run it in a checkout of the source"):
        tune.write([Outcome(_case(), {DEFAULT: 2.0, WIDE: 1.0}, {})], "NVIDIA H200")


@pytest.mark.parametrize("op", catalog.OPS)
def test_tables_are_found_and_their_format_is_ours(op):
    text = tuning.path(op).read_text()
    assert tuning.as_json(json.loads(text)) == text


@pytest.fixture
def on_a_gpu(toys, tmp_path, monkeypatch):
    """The command believes in a GPU; its catalogue is one toy, its table a file of its own."""
    path = tmp_path / "tuning.json"
    path.write_text(tuning.as_json([ANY]))
    monkeypatch.setattr(tuning, "path", lambda op: path)
    monkeypatch.setattr(tuning, "device_kind", lambda: "NVIDIA H200")
    monkeypatch.setattr(catalog, "cases", lambda match="": [c for c in [_case()] if match in c.name])
    return path


def test_the_command_measures_and_writes(on_a_gpu, capsys):
    assert tune.main(["--seconds", "0.001", "--write"]) == 0
    assert json.loads(on_a_gpu.read_text())[0]["device"] == "NVIDIA H200"
    printed = capsys.readouterr().out
    assert "toy/gram N4" in printed
    assert "tuning.json" in printed


def test_the_command_writes_only_on_request(on_a_gpu):
    assert tune.main(["--seconds", "0.001"]) == 0
    assert json.loads(on_a_gpu.read_text()) == [ANY]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--op", "fft"], "--op fft: expected one of taylor_attention"),
        (["--seconds", "0"], "--seconds 0.0: expected a positive number"),
        (["--match", "nothing"], "no default case of any op matches 'nothing'"),
    ],
)
def test_flags_that_make_no_sense(on_a_gpu, flags, message):
    with pytest.raises(ValueError, match=message):
        tune.main(flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [([], "needs a GPU, and jax found only cpu"), (["--fast"], "Unrecognized options: --fast")],
)
def test_without_a_gpu_or_with_a_wrong_flag_one_line_and_status_2(flags, message):
    done = run_module("pallas_kernels.tune", *flags)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == f"python -m pallas_kernels.tune: {message}"
