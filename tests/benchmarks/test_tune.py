"""The order of measurement, measuring and the choice, without a GPU: toy functions."""

import dataclasses
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
from benchmarks.gpu import choices, comparison, journal, trials, tune
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.journal import BROKE, DeviceLostError
from benchmarks.gpu.trials import BROKEN, MEASURED, REFUSED
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


def variants(*chunks_and_warps: tuple[int, int]) -> list[Case]:
    return [_case(Variant(chunk=chunk, warps=warps)) for chunk, warps in chunks_and_warps]


def test_what_differs_least_from_the_current_choice_comes_first():
    one = variants((64, 4), (32, 2), (64, 8), (32, 4))
    two = variants((32, 4), (64, 4), (64, 8))
    found = [(current, batch) for current, batch in trials.batches([one, two])]
    assert found == [
        (one[0], [one[0], one[2], one[3]]),
        (two[0], two[:2]),
        (one[0], [one[1]]),
        (two[0], [two[2]]),
    ]


def test_a_batch_has_few_candidates():
    many = variants((64, 4), *((chunk, 4) for chunk in range(trials.TOGETHER)))
    assert [len(batch) for _, batch in trials.batches([many])] == [trials.TOGETHER, 1]


# Measuring.


def fail(x):
    raise RuntimeError("out of shared memory\nby far")


FUNCTIONS = {
    "a": lambda x: (x + 1,),
    "b": lambda x: (1 + x,),
    "wrong": lambda x: (x * 1.1 + 1,),
    "fails": fail,
    "not finite": lambda x: (x / 0,),
}


@pytest.fixture
def toys(monkeypatch):
    """Run cases by their candidates' names; measuring takes no time. Returns name -> status of the rows."""
    monkeypatch.setattr(trials, "measure", lambda calls: [1.0, 0.5][: len(calls)])
    monkeypatch.setattr(catalog, "carried", lambda case: {})
    monkeypatch.setattr(catalog, "facts", lambda case: {"size": 4})

    def run(path, cases, ends=math.inf, report=None, log=lambda line: None):
        report = {"rows": [], **trials.STATE} if report is None else report
        listed = [
            [_case(Variant(warps=i), FUNCTIONS[name], shape) for i, name in enumerate(names)]
            for shape, names in cases.items()
        ]
        names = {(case, i): name for case, names in cases.items() for i, name in enumerate(names)}
        done = trials.Trials(report, path, ends, log).run(listed)
        found = {
            (row["case"].split()[-1], names[row["case"].split()[-1], row["variant"]["warps"]]): row
            for row in report["rows"]
        }
        return done, found

    return run


def test_wrong_and_failing_candidates_are_refused(tmp_path, toys):
    lines: list[str] = []
    done, rows = toys(tmp_path / "r.json", {"N4": ["a", "wrong", "fails", "b"]}, log=lines.append)
    assert done
    assert [row["status"] for row in rows.values()] == [MEASURED, REFUSED, REFUSED, MEASURED]
    assert rows["N4", "wrong"]["reason"].startswith("ValueError: results differ by 0.0")
    assert rows["N4", "fails"]["reason"] == "RuntimeError: out of shared memory"
    assert (rows["N4", "b"]["seconds"], rows["N4", "b"]["reference_seconds"]) == (0.5, 1.0)
    assert "N4: 500000.0 us, 0.50x" in lines[-1]
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["running"] == []
    assert len(saved["rows"]) == 4


@pytest.mark.parametrize("reference", ["fails", "not finite"])
def test_without_a_reference_nothing_is_measured(reference, tmp_path, toys):
    _, rows = toys(tmp_path / "r.json", {"N4": [reference, "a", "b"], "N8": ["a"]})
    assert {key: row["status"] for key, row in rows.items()} == {
        ("N4", reference): REFUSED,
        ("N4", "a"): REFUSED,
        ("N4", "b"): REFUSED,
        ("N8", "a"): MEASURED,
    }
    assert "the current choice does not run" in rows["N4", "b"]["reason"]


def test_the_time_ends_a_run_and_another_one_goes_on(tmp_path, toys, monkeypatch):
    clock, path, cases = [0.0], tmp_path / "r.json", {"N4": ["a", "b"], "N8": ["a", "b"]}
    sizes = []

    def measure(calls):
        sizes.append(len(json.loads(path.read_text())["rows"]))  # each is on disk before the next begins
        clock[0] += 10
        return [1.0] * len(calls)

    monkeypatch.setattr(trials, "measure", measure)
    monkeypatch.setattr(trials.time, "time", lambda: clock[0])
    done, rows = toys(path, cases, ends=25)
    assert (done, len(rows)) == (False, 3)  # nothing begins after 25
    done, rows = toys(path, cases, report=json.loads(path.read_text()) | {"running": []})
    assert (done, len(rows), sizes) == (True, 4, [0, 1, 2, 3])


def test_what_was_in_flight_when_a_process_ended_is_taken_alone(tmp_path, toys, monkeypatch):
    """One that was alone is left out; of several each compiles alone."""
    case, names = _case(Variant(warps=0)), ["a", "b", "b", "b"]
    keys = [list(trials._key(dataclasses.replace(case, variant=Variant(warps=i)))) for i in range(4)]
    _, rows = toys(
        tmp_path / "r.json", {"N4": ["a", "b"]}, report={**trials.STATE, "rows": [], "running": keys[1:2]}
    )
    assert rows["N4", "b"]["status"] == BROKEN
    assert rows["N4", "b"]["reason"] == BROKE
    begun, compile_it = [], trials.Trials._compile

    def compiles(self, cases):
        begun.append([each.variant.warps for each in cases if each.name not in self._programs])
        compile_it(self, cases)

    monkeypatch.setattr(trials.Trials, "_compile", compiles)
    toys(tmp_path / "r.json", {"N4": names}, report={**trials.STATE, "rows": [], "running": keys[1:3]})
    assert [each for each in begun if each] == [[0], [1], [2], [3]]


def test_a_lost_device_names_what_lost_it(tmp_path, toys, monkeypatch):
    def measure(calls):
        if len(calls) > 1:
            raise ValueError("illegal address")
        return [1.0]

    def lost(error):
        raise DeviceLostError(str(error))

    monkeypatch.setattr(trials, "measure", measure)
    monkeypatch.setattr(journal, "check_device", lost)
    with pytest.raises(DeviceLostError):
        toys(tmp_path / "r.json", {"N4": ["a", "b"]})
    saved = json.loads((tmp_path / "r.json").read_text())
    assert [row["status"] for row in saved["rows"]] == [MEASURED]
    assert saved["running"] == [["toy/gram N4", str(Variant(warps=1))]]


def test_times_are_medians_of_turns():
    calls = [lambda: jnp.zeros(()), lambda: jnp.ones(())]
    assert all(0 < seconds < 1 for seconds in trials.measure(calls))


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
    return main(["tune", "--out", str(path), f"--until={time.time() + 600:.0f}", *flags])


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
        (["--minutes", "-1"], "--minutes = -1.0: expected a positive number"),
        (["--interpret"], "--interpret = True: expected --quick"),
        (["--match", "nothing"], "--match = 'nothing': expected part of the name of a case of any op"),
    ],
)
def test_flags_that_make_no_sense(on_a_gpu, flags, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        command(tmp_path, *flags)


def test_quick_is_quick():
    found = tune.cases(Tune(out=None, quick=True))  # type: ignore[arg-type]
    assert [len(cases) for cases in found] == [3, 3]
    assert all(math.prod(x.shape) < 300_000 for cases in found for x in cases[0].arguments)


@pytest.mark.parametrize(
    ("flags", "message"),
    [([], "needs a GPU, and jax found only cpu"), (["--fast"], "Unrecognized options: --fast")],
)
def test_without_a_gpu_or_with_a_wrong_flag_one_line_and_status_2(flags, message, tmp_path, capsys):
    done = run_here(PROGRAM, main, ["tune", "--out", tmp_path, "--until", NEVER, *flags], capsys)
    assert done.status == 2
    assert re.fullmatch(rf"{PROGRAM}( tune)?: {message}", done.err.strip().splitlines()[-1])
