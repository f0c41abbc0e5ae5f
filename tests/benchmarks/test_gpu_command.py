"""`python -m benchmarks gpu`: every section in the interpreter, and what happens to a run that goes wrong."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from based_jax.command import run
from benchmarks import report
from benchmarks.__main__ import PROGRAM, main
from benchmarks.gpu import command as gpu_command
from benchmarks.gpu import journal
from benchmarks.gpu.command import DEFAULT, cuda_root, environment, merged, say_result
from benchmarks.gpu.journal import MARKS
from benchmarks.gpu.sections import checks, correctness, stopwatch, torch_steps
from benchmarks.gpu.sections.session import BROKE, DeviceLostError, Session, Step
from benchmarks.gpu.sections.stopwatch import Candidate, Prepared, begin, jitted
from benchmarks.gpu.sections.targets import summary
from tests.subprocesses import ROOT
from tests.subprocesses import environment as clean

ABSENT = ("needs triton", "needs jax_triton", "torch", "runs on GPUs", "Mosaic", "interpreter")
"""In the reasons of what cannot run on a CPU, or without packages that may be missing."""

NOT_THERE = (
    "chex",
    "grain",
    "array_record",
    "orbax",
    "tyro",
    "typeguard",
    "beartype",
    "safetensors",
    "tensorboardX",
)
"""What a rented GPU machine may lack: the command needs jax, flax with rich, numpy and jaxtyping."""


def bare_run(folder: Path, *flags: str) -> dict[str, Any]:
    """The report of a run in an interpreter that lacks `NOT_THERE`."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({NOT_THERE}))\n")
    command = [sys.executable, "-m", "benchmarks", "gpu", "--quick", "--interpret", f"--out={folder}", *flags]
    paths = f"{site}{os.pathsep}{ROOT}"
    done = subprocess.run(command, env={**clean(), "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "gpu.json").read_text())


@pytest.mark.slow
def test_it_starts_with_few_packages(tmp_path):
    result = bare_run(tmp_path, "--sections", "machine")
    assert result["complete"]
    assert {row["status"] for row in result["rows"]} == {"measured"}


@pytest.mark.slow
def test_every_section_runs_to_its_end(tmp_path):
    """Rows hold times, ratios and shares of the bound."""
    result = bare_run(tmp_path, "--minutes", "60")
    assert result["complete"]
    assert set(result["summary"]["rows"]) == set(DEFAULT)
    for section in result["summary"]["rows"]:
        rows = [row for row in result["rows"] if row["section"] == section]
        assert section in ("mosaic", "torch") or any(row["status"] in ("measured", "passed") for row in rows)
        reasons = [row["reason"] for row in rows if row["status"] not in ("measured", "passed")]
        assert all(any(word in reason for word in ABSENT) for reason in reasons), reasons
    measured = [row for row in result["rows"] if row["status"] == "measured"]
    assert all(row["seconds"] > 0 and row["samples"] == 1 for row in measured)
    first = [row for row in measured if row["what"] == "pallas"]
    assert {row["section"] for row in first} == {"forward", "backward", "wide"}
    assert all(row["ratio_to_first"] == 1 and row["bound_fraction"] > 0 for row in first)
    rates = [row["per_second"] for row in measured if row["section"] == "machine"]
    assert len(rates) == 2
    assert all(rate > 0 for rate in rates)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param([], marks=pytest.mark.slow, id="watched"),
        pytest.param(["--until", "1e12"], id="in this process"),
    ],
)
def test_without_a_gpu_it_says_so_in_one_line(flags, tmp_path, monkeypatch, capfd):
    for name, value in environment().items():  # the command sets them if nobody else has
        monkeypatch.setenv(name, os.environ.get(name, value))
    with pytest.raises(SystemExit) as stop:
        run(PROGRAM, lambda: main(["gpu", "--json", str(tmp_path / "gpu.json"), *flags]), cached=False)
    error = capfd.readouterr().err
    assert (stop.value.code, error.count("\n")) == (2, 1)
    assert "expected a GPU" in error
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_resumed_with_its_flags_and_on_its_device_only(tmp_path, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, os.environ.get(name, value))
    path, quick = tmp_path / "new" / "gpu.json", {"quick": True, "interpret": True}
    journal.save(report.new_report("gpu", "", quick, [], []), path)
    with pytest.raises(ValueError, match="quick = False: expected True, as in the run to resume"):
        main(["gpu", "--json", str(path), "--resume"])
    journal.append({"status": "measured", "facts": {"device": "H100"}}, tmp_path / "machine.jsonl")
    flags = "--quick", "--interpret", "--until", "1e12", "--sections", "forward"
    with pytest.raises(ValueError, match="device = 'cpu': expected H100, that of the run to resume"):
        main(["gpu", "--json", str(tmp_path / "forward.jsonl"), *flags])


@pytest.mark.parametrize(("has_assembler", "wanted"), [(False, True), (True, False)])
def test_cuda_root_is_set_where_jax_would_take_a_package_without_an_assembler(
    has_assembler, wanted, tmp_path, monkeypatch
):
    package, toolkit = tmp_path / "site" / "nvidia" / "cu13", tmp_path / "cuda"
    for folder in (package / "lib", toolkit / "bin", *([package / "bin"] if has_assembler else [])):
        folder.mkdir(parents=True)
    for folder in (toolkit, package) if has_assembler else (toolkit,):
        (folder / "bin" / "ptxas").write_text("#!/bin/sh\n")
        (folder / "bin" / "ptxas").chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])  # without packages that are installed
    monkeypatch.setitem(sys.modules, "nvidia", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("PATH", str(toolkit / "bin"))
    assert cuda_root() == (str(toolkit) if wanted else None)


# The session: what one thing that goes wrong does to the others.


class Clock:
    """Time that passes only when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def session(path=None, minutes: float = 1.0, clock: Any = None, section: str = "forward") -> Session:
    return Session(section, path, minutes, lambda _: None, quick=True, clock=clock or Clock())


def compare(session: Session, step: str, candidates: list[Candidate]) -> None:
    begin(session, [Step(step, candidates=lambda _: candidates)])[step].measure(session)


def working(name: str) -> Candidate:
    return Candidate(name, lambda: jitted(lambda x: x + 1, [jnp.ones(4)]))


def broken(name: str, message: str = "no") -> Candidate:
    def prepare() -> Prepared:
        raise ValueError(message)

    return Candidate(name, prepare)


def rows_of(session: Session) -> list[tuple[str, str, str]]:
    rows = (row for row in session.rows if row["status"] not in MARKS)
    return [(row["step"], row["what"], row["status"]) for row in rows]


def measured_row(session: Session) -> dict[str, Any]:
    (row,) = (row for row in session.rows if row["status"] == "measured")
    return row


def test_a_candidate_that_fails_does_not_stop_the_others():
    s = session()
    dies_compiling = Candidate("b", lambda: dying(working("b").prepare()))
    compare(s, "one", [working("a"), dies_compiling, broken("c"), working("d")])
    assert sorted(rows_of(s)) == [
        ("one", "a", "measured"),
        ("one", "b", "failed"),
        ("one", "c", "failed"),
        ("one", "d", "measured"),
    ]


def test_the_first_call_which_makes_the_arrays_does_not_decide_the_samples(monkeypatch):
    monkeypatch.setattr(stopwatch, "SLOW_SECONDS", 0.2)

    def make():
        time.sleep(0.3)
        return [jnp.ones(4)]

    s = session()
    s.quick = False
    compare(s, "one", [Candidate("a", lambda: jitted(lambda x: x + 1, [jnp.ones(4)], make=make))])
    row = measured_row(s)
    assert row["samples"] > 2
    assert row["calls_per_sample"] > 1


def test_a_sample_can_be_a_series_of_calls_with_one_wait(monkeypatch):
    monkeypatch.setattr(stopwatch, "LONGEST_SECONDS", 0.1)
    s = session()
    s.quick = False
    compare(s, "one", [Candidate("a", lambda: Prepared(lambda: time.sleep(0.02), series=4))])
    assert measured_row(s)["calls_per_sample"] == 4


def dying(prepared: Prepared) -> Prepared:
    def fail() -> None:
        raise MemoryError("too large")

    return replace(prepared, compile=fail)


def test_a_step_that_fails_does_not_stop_the_next(tmp_path):
    def fails(_):
        raise KeyError("x")

    s = session(tmp_path / "forward.jsonl")
    stopwatch.run(
        s, [Step("one", fails), Step("two", lambda s: s.add(step="two", what="a", status="passed"))]
    )
    assert rows_of(s) == [("one", "all", "failed"), ("two", "a", "passed")]
    assert "KeyError" in s.rows[2]["reason"]
    assert journal.is_complete(s.path)


def test_a_later_command_measures_what_did_not_fit(tmp_path):
    clock, path = Clock(), tmp_path / "forward.jsonl"

    def slow(s):
        clock.now += 40
        s.add(step=name_of[clock.now], what="a", status="passed")

    name_of = {40: "one", 80: "two", 120: "three"}
    steps = [Step(name, slow, least=30 * (name == "two")) for name in name_of.values()]
    s = session(path, clock=clock)
    stopwatch.run(s, steps)
    assert rows_of(s) == [("one", "a", "passed"), ("two", "all", "skipped"), ("three", "all", "skipped")]
    assert not journal.is_complete(path)
    stopwatch.run(session(path, clock=clock), steps)
    assert [(row["step"], row["status"]) for row in journal.results(path)] == [
        (name, "passed") for name in name_of.values()
    ]
    assert journal.is_complete(path)


def test_the_candidates_of_several_steps_compile_before_the_first_is_timed():
    s, compiled, timed = session(), [], []

    def candidate(name: str) -> Candidate:
        def call():
            timed.append(list(compiled))
            return jnp.ones(1)

        return Candidate("a", lambda: Prepared(call, compile=lambda: compiled.append(name)))

    steps = [Step(name, candidates=lambda _, name=name: [candidate(name)]) for name in "abc"]
    stopwatch.run(s, steps)
    assert sorted(timed[0]) == ["a", "b", "c"]
    assert rows_of(s) == [(name, "a", "measured") for name in "abc"]


@pytest.mark.slow
def test_torch_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    row = {"what": "a", "status": "measured", "seconds": 0.5, "batch": 4, "length": 8192}
    code = f"import sys, time; print({json.dumps(row)!r}); print('Error: no memory'); sys.exit(3)"
    (tmp_path / "toy_torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(torch_steps, "PROGRAM", "toy_torch")
    monkeypatch.setattr(torch_steps.importlib.util, "find_spec", lambda name: name)
    s = session(minutes=10, clock=time.monotonic)
    stopwatch.run(s, [step for step in torch_steps.steps(s) if step.name == "forward"])
    assert rows_of(s) == [("forward", "a", "measured"), ("forward", "torch", "failed")]
    assert [row["reason"] for row in s.rows if row["status"] == "failed"] == ["Error: no memory"]
    (tmp_path / "toy_torch.py").write_text(code.replace("sys.exit(3)", "sys.stdout.flush(); time.sleep(60)"))
    monkeypatch.setattr(torch_steps, "LONGEST_SECONDS", 2.0)
    late = session(minutes=10, clock=time.monotonic)
    stopwatch.run(late, [step for step in torch_steps.steps(late) if step.name == "forward"])
    assert rows_of(late) == [("forward", "a", "measured"), ("forward", "rest", "skipped")]


def test_a_lost_device_ends_the_process_and_the_next_one_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "forward.jsonl"

    def lost(error):
        raise DeviceLostError(str(error))

    steps = [
        Step("one", lambda s: s.add(step="one", what="check", status="passed")),
        Step("two", candidates=lambda _: [working("a"), broken("b", "illegal address"), working("c")]),
    ]
    monkeypatch.setattr("benchmarks.gpu.sections.session.check_device", lost)
    with pytest.raises(DeviceLostError):
        stopwatch.run(session(path), steps)
    stopwatch.run(session(path), steps)
    found = journal.results(path)
    assert [(row["step"], row["what"], row["status"]) for row in found] == [
        ("one", "check", "passed"),
        ("two", "b", "failed"),
        ("two", "a", "measured"),
        ("two", "c", "measured"),
    ]
    assert (found[1]["reason"], found[1]["ours"]) == (BROKE, False)


class Named(checks.Check):
    """A check that adds one; its name decides what goes wrong."""

    def __init__(self, name: str):
        self._name = name

    name = property(lambda self: self._name)

    def tiny(self) -> checks.Check:
        return self

    def program(self) -> checks.Program:
        def judge(compiled):
            error = math.nan if self.name == "nan" else float(compiled(jnp.ones(1))[0]) - 2
            return checks.Outcome({"y": error}, 0.1, True)

        return checks.Program(jax.jit(lambda x: x + 1).lower(jnp.ones(1)), judge)


def test_checks_pass_or_are_wrong_and_after_a_crash_each_compiles_alone(tmp_path):
    steps = correctness._steps([Named("a"), Named("nan")])
    path = tmp_path / "correctness.jsonl"
    session(path, section="correctness").begin("a", stopwatch.TOGETHER, ours=False)
    s = session(path, section="correctness")
    stopwatch.run(s, steps)
    found = [("a", stopwatch.TOGETHER, "failed"), ("a", "check", "passed"), ("nan", "check", "wrong")]
    assert rows_of(s) == found
    assert [row["reason"] for row in s.rows if row["status"] == "wrong"] == ["y is off by nan"]
    begun = [(row["step"], row["what"]) for row in s.rows[2:] if row["status"] == journal.BEGUN]
    assert ("a", stopwatch.TOGETHER) not in begun


@pytest.mark.parametrize(("ours", "status"), [(False, 0), (True, 1)])
def test_only_what_is_ours_must_work(ours, status, tmp_path):
    s = session(tmp_path / "forward.jsonl")
    compare(s, "one", [working("a"), replace(broken("b"), ours=ours)])
    found = report.new_report("gpu", "", {"sections": ["forward"]}, [], [])
    found = merged(found, {"forward": s.path})
    assert found["summary"]["rows"] == {"forward": {"measured": 1, "failed": 1}}
    assert not found["complete"]
    assert say_result(found) == status


def test_the_journal_has_null_for_numbers_that_are_not_finite_and_may_be_cut_off(tmp_path):
    s = session(tmp_path / "forward.jsonl")
    errors = {"y": math.inf, "dq": 1.0}
    s.add(step="one", what="a", status="measured", seconds=math.nan, errors=errors, losses=(math.nan, 2.0))
    with s.path.open("a") as file:
        file.write('{"step": "tw')
    (row,) = journal.results(s.path)
    assert (row["seconds"], row["errors"], row["losses"]) == (None, {"y": None, "dq": 1.0}, [None, 2.0])


def test_a_section_that_cannot_be_listed_fails_alone():
    s = session()
    assert stopwatch.listed(s, "device", "no_such_function") == []
    assert rows_of(s) == [("listing", "all", "failed")]
    assert [step.name for step in stopwatch.listed(s, "device", "steps")] == ["facts", "copy", "matmul"]


# The supervisor, with small programs in the place of the measuring process.

PROGRAM_HEAD = """
import os, pathlib, sys, time
path = pathlib.Path(sys.argv[1])
resumed = path.exists()
def begin(): path.open("a").write('{"status": "begun"}\\n')
"""


@pytest.mark.parametrize(
    ("body", "status", "lines"),
    [
        ("begin(); sys.exit(0)", 0, 1),
        ("sys.exit(2)", 2, 0),
        ("raise ImportError('typo')", 1, 0),
        ("begin(); sys.exit(0 if resumed else 75)", 0, 2),
        ("begin(); sys.exit(0) if resumed else os.abort()", 0, 2),
        ("begin(); sys.exit(75)", 75, 3),
        ("begin(); time.sleep(600)", 0, 2),
    ],
    ids=["done", "no GPU", "cannot start", "device lost", "crash", "hopeless", "time is over"],
)
def test_the_supervisor(body, status, lines, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_command, "MAX_PROCESSES", 3)
    path = tmp_path / "forward.jsonl"
    command = [sys.executable, "-c", PROGRAM_HEAD + body, str(path)]
    seconds = 3.0 if "sleep" in body else 600.0
    assert gpu_command.watch(command, path, seconds, lambda _: None) == status
    statuses = [row["status"] for row in journal.lines(path)]
    assert len(statuses) == lines
    assert ("sleep" in body) == (statuses[-1:] == [journal.STOPPED]), "what ran broke nothing"


def test_a_process_that_hangs_ends_itself(tmp_path):
    """As the command arms it."""
    code = f"""
import faulthandler, functools, pathlib, time
from benchmarks.gpu.sections import session
session.STUCK_SECONDS = 0.5
path = pathlib.Path({str(tmp_path / "forward.jsonl")!r})
alive = functools.partial(faulthandler.dump_traceback_later, exit=True)
session.Session("forward", path, 1.0, print, alive=alive).begin("a")
time.sleep(600)
"""
    done = subprocess.run([sys.executable, "-c", code], env=clean(), capture_output=True, text=True)
    assert (done.returncode, "Timeout" in done.stderr) == (1, True)
    assert session(tmp_path / "forward.jsonl").broken("all", "a")


# The targets.


def measured(section: str, step: str, what: str, seconds: float, **facts: Any) -> dict[str, Any]:
    return {"section": section, "step": step, "what": what, "status": "measured", "seconds": seconds, **facts}


def test_targets_from_rows():
    rows = [
        measured("forward", "B4 N8192", "pallas", 1e-3),
        measured("torch", "forward", "fla_parallel_based", 3e-3, batch=4, length=8192),
        measured("torch", "forward", "fla_fused_chunk_based", 1.5e-3, batch=4, length=8192),
        measured("torch", "forward", "fla_fused_chunk_based", 1e-3, batch=16, length=2048),
        measured("forward", "B16 N32768", "pallas", 2e-3),
        measured("backward", "B16 N32768", "pallas", 8e-3),
        measured("decode", "B128", "pallas loop", 1e-5, bound_fraction=0.85),
        *(measured("window", f"B{n}", "pallas loop", 1e-5, batch=n) for n in (1, 32, 64)),
        *(
            measured("window", f"B{n}", "xla loop", t, batch=n)
            for n, t in ((1, 1e-5), (32, 3e-5), (64, 4e-5))
        ),
    ]
    assert [row[1:] for row in summary(rows)["tables"]["targets"]] == [
        ["at least 2", "1.5, missed"],
        ["at most 2.5 ms", "2 ms"],
        ["at most 0.3 ms", None],
        ["at most 3.5", "3"],
        ["at least 0.8", "0.85"],
        ["at least 2", "3"],
    ]
    assert all(measured is None for *_, measured in summary([])["tables"]["targets"])
