"""`python -m benchmarks gpu`: every section in the interpreter, and what happens to a run that goes wrong."""

import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from based_jax.command import run
from benchmarks import report
from benchmarks.__main__ import PROGRAM, main
from benchmarks.gpu import supervisor
from benchmarks.gpu.command import DEFAULT, cuda_root, environment, say_result
from benchmarks.gpu.journal import BROKE, DeviceLostError
from benchmarks.gpu.sections import checks, correctness, running, stopwatch, torch_steps
from benchmarks.gpu.sections.session import Session, Step, resume
from benchmarks.gpu.sections.stopwatch import Candidate, Prepared, compare, jitted
from benchmarks.gpu.sections.targets import summary, targets
from tests.subprocesses import ROOT
from tests.subprocesses import environment as clean

ABSENT = ("needs triton", "torch", "runs on GPUs", "Mosaic", "interpreter")
"""In the reasons of what cannot run on a CPU, or without packages that may be missing."""

NOT_THERE = (
    "chex",
    "grain",
    "array_record",
    "orbax",
    "beartype",
    "safetensors",
    "tensorboardX",
)
"""What a rented GPU machine may lack: the command needs jax, flax with rich, numpy, jaxtyping and tyro."""


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


def test_it_starts_with_few_packages(tmp_path):
    result = bare_run(tmp_path, "--sections", "machine")
    assert result["complete"]
    assert {row["status"] for row in result["rows"]} == {"measured"}


@pytest.mark.slow
def test_every_section_runs_to_its_end(tmp_path):
    """Rows hold times, ratios and shares of the bound."""
    result = bare_run(tmp_path)
    assert result["complete"]
    assert set(result["summary"]["rows"]) == set(DEFAULT)
    for section in result["summary"]["rows"]:
        rows = [row for row in result["rows"] if row["section"] == section]
        assert section in ("mosaic", "torch") or any(row["status"] in ("measured", "passed") for row in rows)
        reasons = [row["reason"] for row in rows if row["status"] not in ("measured", "passed")]
        assert all(any(word in reason for word in ABSENT) for reason in reasons), reasons
    assert result["broken"] == []
    assert result["running"] is None
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
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setitem(sys.modules, "nvidia", None)
    monkeypatch.delitem(sys.modules, "nvidia")
    monkeypatch.setenv("PATH", str(toolkit / "bin"))
    assert cuda_root() == (str(toolkit) if wanted else None)


# The session: what one thing that goes wrong does to the others.


class Clock:
    """Time that passes only when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def fresh() -> dict[str, Any]:
    extra: dict[str, Any] = {"elapsed_seconds": 0.0, "running": None, "broken": [], "done": []}
    return report.new_report("gpu", "", {}, [], []) | extra


def session(path=None, minutes: float = 1.0, clock: Any = None, old: Any = None) -> Session:
    return Session(old or fresh(), path, minutes, lambda _: None, quick=True, clock=clock or Clock())


def working(name: str) -> Candidate:
    return Candidate(name, lambda: jitted(lambda x: x + 1, [jnp.ones(4)]))


def broken(name: str, message: str = "no") -> Candidate:
    def prepare() -> Prepared:
        raise ValueError(message)

    return Candidate(name, prepare)


def rows_of(session: Session) -> list[tuple[str, str, str]]:
    return [(row["step"], row["what"], row["status"]) for row in session.report["rows"]]


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
    (row,) = s.report["rows"]
    assert row["samples"] > 2
    assert row["calls_per_sample"] > 1


def test_a_sample_can_be_a_series_of_calls_with_one_wait(monkeypatch):
    monkeypatch.setattr(stopwatch, "LONGEST_SECONDS", 0.1)
    s = session()
    s.quick = False
    compare(s, "one", [Candidate("a", lambda: Prepared(lambda: time.sleep(0.02), series=4))])
    assert s.report["rows"][0]["calls_per_sample"] == 4


def dying(prepared: Prepared) -> Prepared:
    def fail() -> None:
        raise MemoryError("too large")

    return replace(prepared, compile=fail)


def test_a_long_compilation_is_news_until_it_counts_as_hanging(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.sections.session.UPDATE_SECONDS", 0.01)
    clock, path, future, seen = Clock(), tmp_path / "gpu.json", Future(), []
    s = session(path, clock=clock)

    def save(self):
        seen.append(clock.now)
        clock.now += 100
        if len(seen) == 3:  # past the limit: no more news, until it is done
            threading.Timer(0.2, future.set_result, [None]).start()

    monkeypatch.setattr(Session, "save", save)
    s.wait([future])
    assert seen == [0, 100, 200]


def named(section: str, *steps: Step) -> list[tuple[str, Step]]:
    return [(section, step) for step in steps]


def test_a_step_that_fails_does_not_stop_the_next(tmp_path):
    def fails(_):
        raise KeyError("x")

    s = session(tmp_path / "gpu.json")
    passes = Step("two", lambda s: s.add(step="two", status="passed"))
    running.run(s, named("forward", Step("one", fails), passes))
    saved = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["status"] for row in saved["rows"]] == ["failed", "passed"]
    assert "KeyError" in saved["rows"][0]["reason"]
    assert saved["summary"]["rows"] == {"forward": {"failed": 1, "passed": 1}}  # a killed run has one, too


def test_a_later_command_measures_what_did_not_fit(tmp_path):
    clock, path = Clock(), tmp_path / "gpu.json"

    def slow(s):
        clock.now += 40
        s.add(step=f"at {clock.now:g}", status="passed")

    steps = named("forward", *(Step(name, slow) for name in ("one", "two", "three")))
    s = session(path, clock=clock)
    running.run(s, steps)
    assert s.report["done"] == [["forward", "one"], ["forward", "two"]]
    assert [row["status"] for row in s.report["rows"]] == ["passed", "passed", "skipped"]
    again = session(path, clock=clock, old=resume(path, fresh()))
    running.run(again, steps)
    assert [step for _, step in again.report["done"]] == ["one", "two", "three"]


def test_what_was_never_measured_comes_early_then_what_changed(tmp_path):
    folder = tmp_path / "h100"
    folder.mkdir()
    for day, sources, step in ((1, "new", "changed"), (2, "old", "changed"), (2, "new", "same")):
        rows = [{"section": "forward", "step": step, "status": "measured"}]
        rows.append({"section": "forward", "step": "failing", "status": "failed"})
        kept = {"benchmark": "gpu", "machine": {"date": f"2026-01-0{day}"}, "sources": sources, "rows": rows}
        (folder / f"{step} {sources}.json").write_text(json.dumps(kept))
    before = running.committed(tmp_path, "NVIDIA H100")
    assert before == {("forward", "changed"): "old", ("forward", "same"): "new"}
    steps = named("forward", *(Step(name, print) for name in ("same", "changed", "failing")))
    steps += named("correctness", Step("same", print))
    urgent = named("forward", Step("same", print, urgent=True))
    order = running.in_order([*steps, *urgent], before, "new")
    assert order[0] is urgent[0]
    assert [(section, step.name) for section, step in order[1:]] == [
        ("forward", "failing"),
        ("correctness", "same"),
        ("forward", "changed"),
        ("forward", "same"),
    ]


def test_the_candidates_of_several_steps_compile_before_the_first_is_timed():
    s, compiled, timed = session(), [], []

    def candidate(name: str) -> Candidate:
        def call():
            timed.append(list(compiled))
            return jnp.ones(1)

        return Candidate("a", lambda: Prepared(call, compile=lambda: compiled.append(name)))

    steps = [Step(name, candidates=lambda _, name=name: [candidate(name)]) for name in "abc"]
    running.run(s, named("forward", *steps))
    assert sorted(timed[0]) == ["a", "b", "c"]
    assert rows_of(s) == [(name, "a", "measured") for name in "abc"]


def test_a_step_for_another_process_needs_an_empty_device(tmp_path, monkeypatch):
    steps = named("torch", Step("big", lambda s: s.add(step="big", status="passed"), needs_memory=True))
    s = session(tmp_path / "gpu.json")
    monkeypatch.setattr(running, "_used_bytes", lambda: running.FREE_BYTES + 1)
    with pytest.raises(running.NewProcessNeededError):
        running.run(s, steps)
    assert s.report["running"] is None, "the step is not to blame"
    monkeypatch.setattr(running, "_used_bytes", lambda: 0)
    running.run(s, steps)
    assert s.report["rows"][0]["status"] == "passed"


def test_torch_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    row = {"what": "a", "status": "measured", "seconds": 0.5, "batch": 4, "length": 8192}
    code = f"import sys; print({json.dumps(row)!r}); print('Error: no memory'); sys.exit(3)"
    (tmp_path / "toy_torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(torch_steps, "PROGRAM", "toy_torch")
    monkeypatch.setattr(torch_steps.importlib.util, "find_spec", lambda name: name)
    s = session(minutes=10, clock=time.monotonic)
    running.run(s, [("torch", next(step for step in torch_steps.steps(s) if step.name == "forward"))])
    assert rows_of(s) == [("forward", "a", "measured"), ("forward", "torch", "failed")]
    assert s.report["rows"][1]["reason"] == "Error: no memory"


def test_a_lost_device_ends_the_process_and_the_next_one_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "gpu.json"
    s = session(path)

    def compares(s):
        compare(s, "two", [working("a"), broken("b", "illegal address"), working("c")])

    def passes(s):
        s.add(step="one", what="check", status="passed")

    def lost(error):
        raise DeviceLostError(str(error))

    steps = [Step("one", passes), Step("two", compares)]
    monkeypatch.setattr("benchmarks.gpu.sections.session.check_device", lost)
    with pytest.raises(DeviceLostError):
        running.run(s, named("forward", *steps))

    again = session(path, old=resume(path, fresh()))
    assert again.report["broken"] == [["forward", "two", "b"]]
    running.run(again, named("forward", *steps))
    assert rows_of(again) == [
        ("one", "check", "passed"),
        ("two", "b", "skipped"),
        ("two", "a", "measured"),
        ("two", "c", "measured"),
    ]
    assert again.report["rows"][1]["reason"] == BROKE


class Named(checks.Check):
    """A check that adds one; its name decides what goes wrong."""

    def __init__(self, name: str):
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def tiny(self) -> checks.Check:
        return self

    def program(self) -> checks.Program:
        if self.name == "untraceable":
            raise ValueError("no such shape")

        def judge(compiled):
            error = math.nan if self.name == "nan" else float(compiled(jnp.ones(1))[0]) - 2
            return checks.Outcome({"y": error}, 0.1, True)

        return checks.Program(jax.jit(lambda x: x + 1).lower(jnp.ones(1)), judge)


def check_steps(s: Session, monkeypatch) -> list[Step]:
    monkeypatch.setattr(correctness, "checks", lambda: list(map(Named, ("a", "untraceable", "nan", "b"))))
    monkeypatch.setattr(correctness, "triton_twins", list)
    monkeypatch.setattr(correctness, "Addresses", lambda: Named("addresses"))
    s.section, s.quick = "correctness", False
    return correctness.steps(s)


def test_checks_compile_ahead_and_fail_alone(tmp_path, monkeypatch):
    s = session(tmp_path / "gpu.json")
    running.run(s, named("correctness", *check_steps(s, monkeypatch)))
    assert sorted(rows_of(s)) == [
        ("a", "check", "passed"),
        ("addresses", "check", "passed"),
        ("b", "check", "passed"),
        ("nan", "check", "wrong"),
        ("untraceable", "check", "failed"),
    ]
    reasons = {row["step"]: row["reason"] for row in s.report["rows"]}
    assert reasons["nan"] == "y is off by nan"
    assert reasons["untraceable"] == "ValueError: no such shape"


def test_a_crash_while_several_compile_is_found_one_by_one(tmp_path, monkeypatch):
    """Nothing is blamed: each step compiles again, alone and named in the report."""
    path = tmp_path / "gpu.json"
    s = session(path)
    s.section = "correctness"
    s.running("a", stopwatch.TOGETHER)
    again = session(path, old=resume(path, fresh()))
    steps, seen = check_steps(again, monkeypatch), []
    monkeypatch.setattr(Session, "running", lambda self, step, what: seen.append((step, what)))
    running.run(again, named("correctness", *steps[:1]))
    assert rows_of(again) == [("a", "check", "passed")]
    assert seen[1] == ("a", "all")
    assert ("a", stopwatch.TOGETHER) not in seen


@pytest.mark.parametrize(("ours", "status"), [(False, 0), (True, 1)])
def test_only_what_is_ours_must_work(ours, status):
    s = session()
    compare(s, "one", [working("a"), replace(broken("b"), ours=ours)])
    s.report["summary"] = summary(s.report["rows"])
    assert say_result(s) == status


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path):
    s = session(tmp_path / "gpu.json")
    s.add(
        step="one",
        status="measured",
        seconds=math.nan,
        errors={"y": math.inf, "dq": 1.0},
        losses=(math.nan, 2.0),
    )
    (row,) = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert (row["seconds"], row["errors"], row["losses"]) == (None, {"y": None, "dq": 1.0}, [None, 2.0])


def test_a_section_that_cannot_be_listed_fails_alone():
    s = session()
    steps = running.listed(s, {"forward": ("device", "no_such_function"), "machine": ("device", "steps")})
    assert rows_of(s) == [("listing", "all", "failed")]
    assert [section for section, _ in steps] == ["machine"] * 3


# The supervisor, with small programs in the place of the measuring process.

PROGRAM_HEAD = """
import json, os, pathlib, sys, time
path, resumed = pathlib.Path(sys.argv[1]), "--resume" in sys.argv
def write(**fields): path.write_text(json.dumps(fields))
"""


@pytest.mark.parametrize(
    ("body", "status", "workers"),
    [
        ("write(complete=True); sys.exit(0)", 0, 1),
        ("write(complete=True); sys.exit(1)", 1, 1),
        ("sys.exit(2)", 2, 1),
        ("raise ImportError('typo')", 1, 1),
        ("write(complete=resumed); sys.exit(0 if resumed else 75)", 0, 2),
        ("write(complete=resumed); sys.exit(0) if resumed else os.abort()", 0, 2),
        ("write(complete=resumed); sys.exit(0) if resumed else time.sleep(60)", 0, 2),
        ("write(complete=False); sys.exit(75)", 75, 3),
    ],
    ids=["done", "wrong numbers", "no GPU", "cannot start", "device lost", "crash", "hang", "hopeless"],
)
def test_the_supervisor(body, status, workers, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(supervisor, "MAX_WORKERS", 3)
    monkeypatch.setattr(supervisor, "STUCK_SECONDS", 2.0)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **kw: started.append(command) or popen(command, **kw)
    )
    path = tmp_path / "gpu.json"
    path.write_text('{"complete": true}')  # of an earlier run: it must not count, nor be lost
    ticks = itertools.count()

    def monotonic():
        """Half a second a call while the first program is silent after its news, nothing otherwise: on a
        slow machine a program may take any time to start."""
        silent = len(started) == 1 and '"complete": false' in path.read_text()
        return next(ticks) / 2 if silent else 0.0

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(sleep=time.sleep, monotonic=monotonic))
    command = [sys.executable, "-c", PROGRAM_HEAD + body, str(path)]
    assert supervisor.watch(command, path, lambda _: None) == status
    assert len(started) == workers
    assert ["--resume" in command for command in started] == [False] + [True] * (workers - 1)
    assert path.exists()


def test_the_supervisor_ends_what_still_runs_when_the_time_is_over(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    lines: list[str] = []
    status = supervisor.watch(command, tmp_path / "gpu.json", lines.append, seconds=0.5)
    assert (status, lines) == (supervisor.TIME_OVER, ["the time limit is reached"])


# The targets.


def measured(section: str, step: str, what: str, seconds: float, **facts: Any) -> dict[str, Any]:
    return {"section": section, "step": step, "what": what, "status": "measured", "seconds": seconds, **facts}


def test_targets_from_rows():
    rows = [
        measured("forward", "B4 N8192", "pallas", 1e-3),
        measured("torch", "forward", "fla_parallel_based", 3e-3, batch=4, length=8192),
        measured("torch", "forward", "fla_fused_chunk_based", 1.5e-3, batch=4, length=8192),
        measured("torch", "forward", "fla_fused_chunk_based", 1e-3, batch=4, length=1024),
        measured("forward", "B16 N32768", "pallas", 2e-3),
        measured("backward", "B16 N32768", "pallas", 8e-3),
        measured("decode", "B128", "pallas loop", 1e-5, bound_fraction=0.85),
        *(measured("window", f"B{n}", "pallas loop", 1e-5, batch=n) for n in (1, 32, 64)),
        *(
            measured("window", f"B{n}", "xla loop", t, batch=n)
            for n, t in ((1, 1e-5), (32, 3e-5), (64, 4e-5))
        ),
    ]
    found = [(target.value and round(target.value, 6), target.met) for target in targets(rows)]
    assert found == [
        (1.5, False),
        (2.0, True),
        (None, None),
        (3.0, True),
        (0.85, True),
        (3.0, True),
    ]
    assert all(measured is None for *_, measured in summary([])["tables"]["targets"])
    shown = summary(rows)["tables"]["targets"]
    assert shown[1][1:] == ["at most 2.5 ms", "2 ms"]
    assert shown[0][1:] == ["at least 2", "1.5, missed"]
