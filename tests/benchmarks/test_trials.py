"""Measuring one candidate after the other without a GPU: toy functions, a clock of our own, real crashes."""

import json
import math
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.gpu import comparison, journal, trials
from benchmarks.gpu.journal import BROKE, DEVICE_LOST, DeviceLostError
from benchmarks.gpu.order import Order
from benchmarks.gpu.trials import BROKEN, MEASURED, REFUSED, STATE, Trial, Trials
from tests.subprocesses import ROOT, environment


class Clock:
    """Time that passes only where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(x):
    raise RuntimeError("out of shared memory\nby far")


FUNCTIONS = {
    "a": lambda x: (x + 1,),
    "b": lambda x: (1 + x,),
    "wrong": lambda x: (x * 1.1 + 1,),
    "fails": fail,
    "not finite": lambda x: (x / 0,),
}


def trial(case: str, name: str, carried=None) -> Trial:
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    return Trial(case, name, FUNCTIONS[name], (x,), {"name": name}, {"op": "toy"}, carried or {})


def toys(path, cases, ends=math.inf, clock=None, report=None) -> tuple[Trials, list[str]]:
    report = {"rows": [], **STATE} if report is None else report
    lines: list[str] = []
    listed = [[trial(case, name) for name in names] for case, names in cases.items()]
    order = Order([[t.variant for t in found] for found in listed])
    found = Trials(listed, order, report, path, ends, 1e-4, lines.append, clock=clock or Clock(), threads=2)
    return found, lines


def statuses(report) -> dict[tuple[str, str], str]:
    return {(row["case"], row["candidate"]): row["status"] for row in report["rows"]}


@pytest.fixture
def measured(monkeypatch):
    """Names of what was measured, which takes no time."""
    calls: list[int] = []

    def measure(candidates, seconds):
        calls.append(len(candidates))
        return [1.0, 0.5][: len(candidates)]

    monkeypatch.setattr(comparison, "measure", measure)
    return calls


def test_wrong_and_failing_candidates_are_refused(tmp_path, measured):
    found, lines = toys(tmp_path / "r.json", {"N4": ["a", "wrong", "fails", "b"]})
    assert found.run()
    saved = json.loads((tmp_path / "r.json").read_text())
    assert statuses(saved) == {
        ("N4", "a"): MEASURED,
        ("N4", "wrong"): REFUSED,
        ("N4", "fails"): REFUSED,
        ("N4", "b"): MEASURED,
    }
    rows = {row["candidate"]: row for row in saved["rows"]}
    assert rows["wrong"]["reason"].startswith("results differ by 0.0")
    assert rows["fails"]["reason"] == "RuntimeError: out of shared memory"
    assert (rows["b"]["seconds"], rows["b"]["reference_seconds"]) == (0.5, 1.0)
    assert "N4: 500000.0 us, 0.50x  b" in lines[-1]
    assert saved["running"] == []


@pytest.mark.parametrize("reference", ["fails", "not finite"])
def test_without_a_reference_nothing_is_measured(reference, tmp_path, measured):
    found, _ = toys(tmp_path / "r.json", {"N4": [reference, "a", "b"], "N8": ["a"]})
    assert found.run()
    assert statuses(found.report) == {
        ("N4", reference): REFUSED,
        ("N4", "a"): REFUSED,
        ("N4", "b"): REFUSED,
        ("N8", "a"): MEASURED,
    }
    assert "the current choice does not run" in found.report["rows"][-2]["reason"]


def test_each_result_is_on_disk_before_the_next_begins(tmp_path, monkeypatch):
    path, sizes = tmp_path / "r.json", []

    def measure(candidates, seconds):
        sizes.append(len(json.loads(path.read_text())["rows"]))
        return [1.0] * len(candidates)

    monkeypatch.setattr(comparison, "measure", measure)
    found, _ = toys(path, {"N4": ["a", "b"], "N8": ["a", "b"]})
    assert found.run()
    assert sizes == [0, 1, 2, 3]


def test_the_time_ends_a_run_and_another_one_goes_on(tmp_path, monkeypatch):
    clock, path = Clock(), tmp_path / "r.json"

    def measure(candidates, seconds):
        clock.now += 10
        return [1.0] * len(candidates)

    monkeypatch.setattr(comparison, "measure", measure)
    cases = {"N4": ["a", "b"], "N8": ["a", "b"]}
    first, _ = toys(path, cases, ends=25, clock=clock)
    assert not first.run()
    assert clock.now == 30  # nothing begins after 25
    assert len(first.report["rows"]) == 3
    second, _ = toys(path, cases, report=json.loads(path.read_text()), clock=clock)
    assert second.run()
    assert clock.now == 40
    assert len(statuses(second.report)) == len(second.report["rows"]) == 4


def test_what_compiles_long_holds_nobody_up(tmp_path, monkeypatch):
    slow: Future[Any] = Future()

    def measure(candidates, seconds):
        done.append(len(candidates))
        if len(done) == 3:
            slow.set_result(candidates[-1])
        return [1.0] * len(candidates)

    done: list[int] = []
    monkeypatch.setattr(comparison, "measure", measure)
    monkeypatch.setattr(comparison, "repeatedly", lambda compiled, *_: compiled)
    found, _ = toys(tmp_path / "r.json", {"N4": ["a", "b"], "N8": ["a", "b"]})
    compile_it = found._compile
    monkeypatch.setattr(found, "_compile", lambda *which: slow if which == (0, 1) else compile_it(*which))
    assert found.run()
    assert [(row["case"], row["candidate"]) for row in found.report["rows"]] == [
        ("N4", "a"),
        ("N8", "a"),
        ("N8", "b"),
        ("N4", "b"),
    ]


def test_a_suspect_that_does_not_compile_is_left_out(tmp_path, measured, monkeypatch):
    monkeypatch.setattr(trials, "COMPILE_SECONDS", 0.2)
    report = {"rows": [], **STATE, "running": [["N4", "b"], ["N4", "gone"]]}
    found, _ = toys(tmp_path / "r.json", {"N4": ["a", "b"]}, clock=time.time, report=report)
    compile_it = found._compile
    monkeypatch.setattr(
        found,
        "_compile",
        lambda *which: compile_it(*which) and Future() if which == (0, 1) else compile_it(*which),
    )
    assert found.run()
    assert statuses(found.report) == {("N4", "b"): BROKEN, ("N4", "a"): MEASURED}
    assert found.report["rows"][0]["reason"] == "did not compile within 0.2 s, alone"


def test_a_lost_device_names_what_lost_it(tmp_path, monkeypatch):
    def measure(candidates, seconds):
        if len(candidates) > 1:
            raise ValueError("illegal address")
        return [1.0]

    def lost(error):
        raise DeviceLostError(str(error))

    monkeypatch.setattr(comparison, "measure", measure)
    monkeypatch.setattr(journal, "check_device", lost)
    found, _ = toys(tmp_path / "r.json", {"N4": ["a", "b"]})
    with pytest.raises(DeviceLostError):
        found.run()
    saved = json.loads((tmp_path / "r.json").read_text())
    assert statuses(saved) == {("N4", "a"): MEASURED, ("N4", "b"): BROKEN}
    assert "illegal address" in saved["rows"][-1]["reason"]


def test_arguments_updated_in_place_are_given_away_as_copies(tmp_path):
    report = {"rows": [], **STATE}
    listed = [[trial("N4", name, {0: 0}) for name in ("a", "b", "wrong")]]
    order = Order([[t.variant for t in listed[0]]])
    found = Trials(listed, order, report, tmp_path / "r.json", math.inf, 1e-4, lambda _: None)
    assert found.run()
    assert [row["status"] for row in report["rows"]] == [MEASURED, MEASURED, REFUSED]
    assert all(0 < row["seconds"] < 10 for row in report["rows"][:2])


CRASHING = """
import json, os, pathlib, signal, sys, time
import jax, jax.numpy as jnp
from benchmarks.gpu import comparison
from benchmarks.gpu.order import Order
from benchmarks.gpu.trials import STATE, Trial, Trials

path = pathlib.Path(sys.argv[1])

def present(x):
    return x + 1

def innocent(x):
    return x + 1

def crashes(x):
    os.kill(os.getpid(), signal.SIGKILL)

def hangs(x):
    return x + 1

def last(x):
    return x + 1

def measure(candidates, seconds):
    row = len(json.loads(path.read_text())["rows"])
    with path.with_name("log").open("a") as file:
        print(row, file=file)
    if row == 3:
        time.sleep(600)
    return [1.0] * len(candidates)

comparison.measure = measure
x = jax.ShapeDtypeStruct((4,), jnp.float32)
functions = (present, innocent, crashes, hangs, last)
listed = [[Trial("N4", f.__name__, f, (x,), {"name": f.__name__}, {}) for f in functions]]
report = json.loads(path.read_text()) if path.exists() else {"rows": [], **STATE}
order = Order([[trial.variant for trial in trials] for trials in listed])
trials = Trials(listed, order, report, path, time.time() + 600, 1e-4, print, stuck=2.0, threads=1)
sys.exit(0 if trials.run() else 1)
"""


@pytest.mark.release
def test_what_ends_a_process_is_left_out_and_nothing_is_measured_again(tmp_path):
    status = []
    while len(status) < 8 and 0 not in status:
        command = [sys.executable, "-c", CRASHING, str(tmp_path / "r.json")]
        done = subprocess.run(command, env=environment(), cwd=ROOT, check=False, capture_output=True)
        status.append(done.returncode)
    # Killed with two in flight; each of these runs alone, where one ends its process again; then one hangs.
    assert status == [-signal.SIGKILL, -signal.SIGKILL, DEVICE_LOST, 0]
    saved = json.loads((tmp_path / "r.json").read_text())
    assert {name: status for (_, name), status in statuses(saved).items()} == {
        "present": MEASURED,
        "innocent": MEASURED,
        "crashes": BROKEN,
        "hangs": BROKEN,
        "last": MEASURED,
    }
    reasons = {row["candidate"]: row.get("reason") for row in saved["rows"]}
    assert reasons["crashes"] == BROKE
    assert reasons["hangs"] == "did not end within 2 s"
    assert (tmp_path / "log").read_text().split() == ["0", "1", "3", "4"]
