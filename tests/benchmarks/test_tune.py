"""Times, the order of measurement, and the choice, without a GPU: a clock of our own and toy functions."""

import json
import math
import re
import time
from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.__main__ import PROGRAM, main
from benchmarks.gpu import choices, comparison, tune
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.order import Order
from benchmarks.gpu.tune import Tune
from pallas_kernels import tuning
from tests.commands import run_here
from tests.kernels.toy import Variant

NEVER = 1e12
"""as the end of the process that watches this one: without it the command starts another, which measures"""
DEFAULT, WIDE, NARROW = Variant(), Variant(warps=8), Variant(warps=2)
ANY = {"device": "any", "when": {"size": [1, 64]}, "variant": {"chunk": 64, "warps": 4}}
AMPERE = {"device": "8.0", "when": {"size": 4}, "variant": {"chunk": 32, "warps": 4}}


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

    def candidate(self, name: str, *seconds: float):
        """Calls take `seconds` in turn, the last of them from then on."""
        remaining = list(seconds)

        def call() -> None:
            self.log.append(name)
            self.now += remaining.pop(0) if len(remaining) > 1 else remaining[0]

        return call


def _measure(clock: Clock, candidates, seconds: float) -> list[float]:
    return comparison.measure(candidates, seconds, clock=clock, wait=lambda result: None)


def test_medians_do_not_count_the_compilation():
    clock = Clock()
    candidates = [clock.candidate("a", 5.0, 0.25), clock.candidate("b", 9.0, 0.5)]
    assert _measure(clock, candidates, 1.0) == [0.25, 0.5]


def test_one_slow_sample_does_not_matter():
    clock = Clock()
    slow_once = clock.candidate("a", *[0.1] * 6, 3.0, 0.1)
    assert _measure(clock, [slow_once], 0.1) == [pytest.approx(0.1)]


def test_candidates_take_turns_that_begin_elsewhere():
    clock = Clock()
    _measure(clock, [clock.candidate(name, 0.5) for name in "abc"], 0.5)
    rounds = "".join(clock.log[3 * 4 :])  # after one call to warm up and three to choose the number of calls
    assert rounds == "abcbcacababcbca"[: len(rounds)]
    assert len(rounds) == 3 * comparison.ROUNDS


def test_quick_calls_are_repeated_within_a_sample():
    clock = Clock()
    (seconds,) = _measure(clock, [clock.candidate("a", 1e-3)], 0.001)
    assert seconds == pytest.approx(1e-3)
    assert len(clock.log) == 4 + 20 * comparison.ROUNDS


def test_the_budget_is_for_each_candidate():
    clock = Clock()
    _measure(clock, [clock.candidate(name, 0.25) for name in "ab"], 3.0)
    assert clock.now == pytest.approx(2 * (4 * 0.25 + 3.0))


def test_carried_arguments_are_replaced_by_the_results():
    start = jnp.zeros(3)
    step = jax.jit(lambda x, y: (y, x + y), donate_argnums=0)
    call = comparison.repeatedly(step, [start, jnp.ones(3)], {0: 1})
    for expected in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(call()[1], np.full(3, expected))
    np.testing.assert_array_equal(start, np.zeros(3))


@pytest.mark.parametrize(
    ("results", "expected"),
    [([1.0, 2.0], 0.0), ([1.0, 2.5], 0.25), ([1.0, np.nan], np.inf), ([np.inf, 2.0], np.inf)],
)
def test_disagreement(results, expected):
    assert comparison.disagreement((jnp.array([1.0, 2.0]),), (jnp.array(results),)) == expected


def test_results_that_are_zero_agree_with_themselves():
    assert comparison.disagreement(jnp.zeros(2), jnp.zeros(2)) == 0


def test_example_arguments():
    x, n, flag = comparison.example(
        [
            jax.ShapeDtypeStruct((64,), jnp.bfloat16),
            jax.ShapeDtypeStruct((2,), jnp.int32),
            jax.ShapeDtypeStruct((2,), jnp.bool_),
        ],
        {1: 7},
    )
    assert (x.dtype, n.dtype, flag.dtype) == (jnp.bfloat16, jnp.int32, jnp.bool_)
    assert 0 <= float(x.min()) < 0.25 < 0.75 < float(x.max()) <= 1
    assert n.tolist() == [7, 7]
    assert not flag.any()


def test_kernels_are_measured_on_full_windows_and_whole_rows():
    """With the zeros that whole numbers are otherwise they would have nothing to read."""
    (window,) = catalog.cases("window_step/step W64 H16 G16 K64 bfloat16")
    assert {i for i, x in enumerate(window.arguments) if x.dtype == jnp.int32} == set(window.fill)
    assert min(window.fill.values()) >= 64
    (packed,) = catalog.cases("taylor_attention/outputs K16 V64 bfloat16 packed")
    starts, counts = (packed.arguments[i] for i in packed.fill)
    assert list(packed.fill.values()) == [-1, starts.shape[1]]
    assert (starts.dtype, counts.shape) == (jnp.int32, starts.shape[:1])


# The order of measurement.


def test_the_headline_comes_first_and_what_runs_on_request_last():
    cases = sorted(
        (case for case in catalog.cases() if case.default and case.kernel != "scan"), key=tune.rank
    )
    names = [f"{case.kernel} {case.shape}" for case in cases]
    assert names[:6] == [
        f"{kernel} K16 V64 bfloat16" for kernel in ("outputs", "dq", "dk", "dv", "key_sums", "query_sums")
    ]
    assert all(name.endswith("K16 V64 bfloat16 packed") for name in names[6:12])
    others = {case.op for case in cases[12:62]}
    assert others == {"taylor_step", "window_attention", "window_step", "conv_step", "row_products"}
    on_request = [case.on_request for case in cases]
    assert on_request == sorted(on_request)


def test_every_candidate_is_another_program():
    """Tiles wider than the values are cut to them."""
    for shape, tiles in (("V64", {32, 64}), ("V32", {64}), ("V128", {32, 64, 128})):
        (case,) = catalog.cases(f"outputs K16 {shape} bfloat16 V")
        found = [other.variant for other in catalog.candidates(case)]
        assert found[0] == case.variant
        assert {variant.value_tile for variant in found} == tiles
        assert len({str(variant) for variant in found}) == len(found)


def grid(**worth: float) -> list[dict[str, int]]:
    """Two values of each field, those in use first."""
    found: list[dict[str, int]] = [{}]
    for name in worth:
        found = [{**fields, name: value} for value in (0, 1) for fields in found]
    return sorted(found, key=lambda fields: sum(fields.values()))


def everything(order: Order, times) -> list[tuple[int, int]]:
    taken = []
    while (found := order.take()) is not None:
        taken.append(found)
        order.learn(*found, times(*found))
    return taken


def test_present_choices_and_neighbours_of_every_case_come_first():
    cases = [grid(chunk=0, warps=0, stages=0), grid(chunk=0, warps=0)]
    taken = everything(Order(cases), lambda case, i: 1.0)
    assert Order(cases).first == 7
    assert taken[:7] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]
    assert sorted(taken) == [(case, i) for case, found in enumerate(cases) for i in range(len(found))]


def test_then_whatever_promises_most():
    worth = [{"chunk": 0.8, "warps": 0.9, "stages": 1.3}, {"chunk": 0.5, "warps": 1.1}]
    cases = [grid(**fields) for fields in worth]

    def time_of(case: int, i: int) -> float:
        return math.prod(worth[case][name] for name, value in cases[case][i].items() if value)

    taken = everything(Order(cases), time_of)[7:]
    assert [cases[case][i] for case, i in taken[:2]] == [
        {"chunk": 1, "warps": 1},  # of the second case: 0.55
        {"chunk": 1, "warps": 1, "stages": 0},  # of the first: 0.72
    ]
    assert cases[taken[-1][0]][taken[-1][1]] == {"chunk": 0, "warps": 1, "stages": 1}


def test_what_does_not_run_makes_its_like_come_last():
    cases = [grid(chunk=0, warps=0, stages=0)]
    refused = {"chunk"}
    taken = everything(
        Order(cases),
        lambda case, i: None if any(cases[case][i][name] for name in refused) else 1.01,
    )
    assert cases[0][taken[4][1]] == {"chunk": 0, "warps": 1, "stages": 1}


# The choice.


def row(shape: str, variant: Variant, ratio: float | None, size: int = 4) -> dict:
    found = {
        "op": "toy",
        "case": f"toy/gram {shape}",
        "candidate": str(variant),
        "when": {"size": size},
        "variant": asdict(variant),
    }
    if ratio is None:
        return found | {"status": "refused", "reason": "no"}
    return found | {"status": "measured", "seconds": 2.0 * ratio, "reference_seconds": 2.0}


def chosen(*rows: dict) -> list[dict]:
    return choices.tuning_rows(rows, "9.0").get("toy", [])


def test_the_fastest_variant_becomes_a_row():
    (found,) = chosen(
        row("N4", DEFAULT, 1.0), row("N4", WIDE, 0.9), row("N4", NARROW, 0.5), row("N4", DEFAULT, 1.0)
    )
    assert found == {"device": "9.0", "when": {"size": 4}, "variant": asdict(NARROW)}


def test_a_row_is_best_over_all_shapes_that_share_its_conditions():
    first = [row("N4", DEFAULT, 1.0), row("N4", WIDE, 0.9), row("N4", NARROW, 0.5)]
    second = [row("N8", DEFAULT, 1.0), row("N8", WIDE, 0.8), row("N8", NARROW, None)]
    (found,) = chosen(*first, *second)
    assert found["variant"] == asdict(WIDE)
    assert chosen(*first, row("N8", DEFAULT, 1.0), row("N8", WIDE, 1.3), row("N8", NARROW, 2.1)) == []


def test_a_gain_that_may_be_noise_changes_nothing():
    assert chosen(row("N4", DEFAULT, 1.0), row("N4", WIDE, 0.99)) == []
    assert chosen(row("N4", WIDE, None)) == []


def test_a_row_goes_before_those_that_might_hold_instead():
    new = {"device": "9.0", "when": {"size": 4}, "variant": {"warps": 8}}
    broad = {**new, "when": {"size": [1, 9]}}
    older = {**new, "variant": {"warps": 1}}
    assert choices.with_row([AMPERE, ANY], new) == [AMPERE, new, ANY]
    assert choices.with_row([AMPERE, broad, ANY], new) == [AMPERE, new, broad, ANY]
    assert choices.with_row([broad, older, ANY], new) == [broad, new, ANY]
    assert choices.with_row([], new) == [new]


def test_a_row_is_what_calls_get(monkeypatch):
    (found,) = chosen(row("N4", DEFAULT, 1.0), row("N4", WIDE, 0.5))
    monkeypatch.setattr(tuning, "table", lambda op: choices.with_row([AMPERE, ANY], found))
    assert tuning.choose("toy", Variant, capability="9.0", size=4) == WIDE
    assert tuning.choose("toy", Variant, capability="9.0", size=5) == DEFAULT


@pytest.mark.parametrize("op", catalog.OPS)
def test_tables_are_found_and_their_format_is_ours(op):
    text = tuning.path(op).read_text()
    assert tuning.as_json(json.loads(text)) == text


# The command.


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The command believes in a GPU; its catalogue is one toy with another candidate."""
    candidates = [_case(WIDE, lambda x: (1 + x,)), _case(NARROW, lambda x: (x * 1.1 + 1,))]
    monkeypatch.setattr(catalog, "candidates", lambda case: [case, *candidates])
    monkeypatch.setattr(catalog, "carried", lambda case: {0: 0})
    monkeypatch.setattr(catalog, "facts", lambda case: {"size": 4})
    monkeypatch.setattr(catalog, "cases", lambda match="": [c for c in [_case()] if match in c.name])
    monkeypatch.setattr(tune, "no_gpu", lambda: None)


def command(path, *flags: str) -> int:
    """Measure in this process, as the one that is watched does."""
    return main(
        ["tune", "--out", str(path), "--seconds", "0.001", f"--until={time.time() + 600:.0f}", *flags]
    )


def test_the_command_measures_into_a_report_and_goes_on_with_it(on_a_gpu, tmp_path, capsys):
    assert command(tmp_path) == 0
    report = json.loads((tmp_path / "tune.json").read_text())
    assert report["complete"]
    assert [row["status"] for row in report["rows"]] == ["measured", "measured", "refused"]
    first = report["rows"][0]
    assert (first["op"], first["when"], first["variant"]) == ("toy", {"size": 4}, asdict(DEFAULT))
    assert report["machine"]["device"] == "cpu"
    assert "2 measured, 1 refused of 3" in capsys.readouterr().out

    with pytest.raises(ValueError, match="--resume continues the existing one"):
        command(tmp_path)
    del report["rows"][1]
    (tmp_path / "tune.json").write_text(json.dumps(report))
    assert command(tmp_path, "--resume") == 0
    resumed = json.loads((tmp_path / "tune.json").read_text())
    assert resumed["rows"][:2] == report["rows"]
    assert resumed["rows"][2]["candidate"] == str(WIDE)


def test_times_of_another_machine_are_not_gone_on_with(on_a_gpu, tmp_path):
    assert command(tmp_path) == 0
    path = tmp_path / "tune.json"
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "NVIDIA H200"'))
    with pytest.raises(ValueError, match=r"device of .*tune.json = 'NVIDIA H200': expected 'cpu', as now"):
        command(tmp_path, "--resume")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--op", "fft"], "--op = 'fft': expected one of taylor_attention"),
        (["--seconds", "0"], "--seconds = 0.0: expected a positive number"),
        (["--minutes", "-1"], "--minutes = -1.0: expected a positive number"),
        (["--interpret"], "--interpret = True: expected --quick"),
        (["--match", "nothing"], "--match = 'nothing': expected part of the name of a case of any op"),
    ],
)
def test_flags_that_make_no_sense(on_a_gpu, flags, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        command(tmp_path, *flags)


def test_quick_is_quick():
    found = tune.trials(Tune(out=None, quick=True))  # type: ignore[arg-type]
    assert [len(trials) for trials in found] == [3, 3]
    assert all(math.prod(x.shape) < 300_000 for trials in found for x in trials[0].arguments)


@pytest.mark.parametrize(
    ("flags", "message"),
    [([], "needs a GPU, and jax found only cpu"), (["--fast"], "Unrecognized options: --fast")],
)
def test_without_a_gpu_or_with_a_wrong_flag_one_line_and_status_2(flags, message, tmp_path, capsys):
    done = run_here(PROGRAM, main, ["tune", "--out", tmp_path, "--until", NEVER, *flags], capsys)
    assert done.status == 2
    assert re.fullmatch(rf"{PROGRAM}( tune)?: {message}", done.err.strip().splitlines()[-1])
