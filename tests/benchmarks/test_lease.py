"""`python -m benchmarks lease`: steps that end inside their minutes, with toys instead of the commands."""

import json
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks import lease
from benchmarks.lease import LOG, LONGEST_STEP, STEPS, Run, Step, cuda_root, ends_of, installed, watched
from tests.benchmarks.refusals import expect_one_line
from tests.patience import PATIENCE
from tests.subprocesses import run_module


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """One step of two commands, modules in a folder of their own; the wheels' folder is empty."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "toy_fast.py").write_text("import sys; print('fast', *sys.argv[1:])")
    (folder / "toy_bad.py").write_text("import sys; print('bad', file=sys.stderr); sys.exit(3)")
    runs = (Run(("toy_fast", "--json", "{out}/a.json"), 0.25), Run(("toy_bad",), 0.75))
    monkeypatch.setattr(lease, "STEPS", (Step("toys", 9.0, runs),))


def test_a_step_runs_its_commands_and_keeps_what_they_print(steps, tmp_path):
    out = tmp_path / "out"
    status = lease.Lease(step=1, out=out, wheels=tmp_path, resume=True).run("the command")
    assert status == 3
    text = (out / LOG).read_text()
    assert text.startswith("the command\n")
    first, second = (line.split() for line in text.splitlines() if line.startswith(("fast", "bad")))
    assert first[:3] == ["fast", "--json", f"{out}/a.json"]
    assert 2 < float(first[3].removeprefix("--minutes=")) <= 0.25 * 9
    assert first[4:] == ["--resume"]
    assert second == ["bad"]


def test_the_list_fits_a_lease():
    assert sum(step.minutes for step in STEPS) <= 45
    assert sum(step.minutes for step in STEPS[:3]) <= 28
    assert all(step.minutes <= LONGEST_STEP for step in STEPS)
    assert ends_of(STEPS[4], 100) == [pytest.approx(60), pytest.approx(100)]


def test_what_takes_too_long_is_ended_with_all_it_started(tmp_path):
    """The command starts another process, as the one that watches a measuring process does."""
    child = "import time; time.sleep(3600)"
    code = "import subprocess, sys\n"
    code += f"p = subprocess.Popen([sys.executable, '-c', {child!r}]); print(p.pid); p.wait()"
    path = tmp_path / "log"
    with path.open("w") as log:
        for seconds in (0.5, 5.0):  # it may not have started so soon
            assert watched([sys.executable, "-u", "-c", code], dict(os.environ), seconds, log) == 124
            if path.read_text():
                break
    pid = int(path.read_text().split()[0])
    ends = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_carried_wheels_are_installed_without_a_network(tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "carried-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "answer = 42\n")
        wheel.writestr("carried-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1\n")
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("carried-1.dist-info/WHEEL", tags)
        wheel.writestr("carried-1.dist-info/RECORD", "")
    monkeypatch.setattr(lease.tempfile, "gettempdir", lambda: str(tmp_path))
    with (tmp_path / "log").open("w+") as log:
        site = installed(wheels, log)
        assert site is not None
        assert Path(site, "carried.py").exists(), log.seek(0) or log.read()


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
    monkeypatch.delenv("CUDA_ROOT", raising=False)
    monkeypatch.setenv("PATH", str(toolkit / "bin"))
    assert cuda_root() == (str(toolkit) if wanted else None)
    monkeypatch.setenv("CUDA_ROOT", "/mine")
    assert cuda_root() is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--step", "6"], "--step = 6: expected 1 to 5"),
        (["--step", "1", "--minutes", "0"], "--minutes = 0.0: expected more than 0"),
        (["--step", "1", "--interpret"], "--quick"),
        ([], "--step"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(flags, message, capsys, tmp_path):
    expect_one_line("lease", ["--out", str(tmp_path), *flags], message, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_every_step_is_rehearsed(step, tmp_path):
    flags = ["--quick", "--interpret", "--out", str(tmp_path), "--wheels", str(tmp_path)]
    done = run_module("benchmarks", "lease", "--step", str(step), *flags, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert reports
    assert all(report["complete"] for report in reports)
