"""The service that follows a run: what it gets, when it is continued, and that it never stops the run."""

import importlib
import json
import sys
import types
from collections.abc import Iterator

import pytest

from based_jax.training.commands import lm
from based_jax.training.devices import hosts
from based_jax.training.run import metrics
from based_jax.training.run.metrics import MetricWriter, read_metrics
from based_jax.training.run.trackers import FILE, TrackConfig

STUB = """
calls, failing = [], set()

def note(name, *values):
    print("noise of", name)
    calls.append((name, *values))
    if name in failing:
        raise ConnectionError(f"no network for {name}\\nand more")

class Settings:
    def __init__(self, **options):
        self.options = options

class Run:
    def define_metric(self, name, step_metric):
        note("define", name, step_metric)
    def log(self, values):
        note("log", values)
    def finish(self):
        note("finish")

def init(**options):
    note("init", options)
    return Run()
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch) -> Iterator[types.ModuleType]:
    """A stub, as a package that is installed."""
    (tmp_path / "stubs").mkdir()
    (tmp_path / "stubs" / "wandb.py").write_text(STUB)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "stubs"))
    yield importlib.import_module("wandb")
    sys.modules.pop("wandb", None)


@pytest.fixture
def workdir(tmp_path):
    """Of a run that has its config.json."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "config.json").write_text('{"train": {"seed": 3}}')
    return tmp_path / "first"


MINE = TrackConfig("wandb", "mine")


def named(module, name: str) -> list:
    return [values[0] if values else None for called, *values in module.calls if called == name]


def test_what_it_gets(wandb, workdir, capsys):
    with MetricWriter(workdir, 2, tracking=MINE) as writer:
        writer.write(1, {"loss": 0.5, "grad_norm": float("inf")})
        writer.write(2, {"loss": 0.25})
    (options,) = named(wandb, "init")
    assert options["config"] == {"train": {"seed": 3}}
    assert (options["project"], options["name"], options["dir"]) == ("mine", "first", str(workdir))
    assert options["settings"].options == {"console": "off"}
    assert named(wandb, "log") == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert wandb.calls[-1] == ("finish",)
    assert not capsys.readouterr().out  # which has the command's results


def test_a_resumed_run_is_the_same_and_a_new_one_is_another(wandb, workdir):
    for start in (0, 1, 5, 0):
        with MetricWriter(workdir, 9, start, MINE):
            pass
    ids = [options["id"] for options in named(wandb, "init")]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert {options["resume"] for options in named(wandb, "init")} == {"allow"}
    assert json.loads((workdir / FILE).read_text())["wandb/mine"] == ids[3]


@pytest.mark.parametrize("call", ["log", "finish"])
def test_a_failure_is_one_warning(call, wandb, workdir, capsys):
    wandb.failing.add(call)
    with MetricWriter(workdir, 9, tracking=MINE) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"loss": 1.0 / step})
    warned = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    assert warned == [f"wandb failed, and the run goes on without it: no network for {call}"]
    assert len(named(wandb, "log")) == (1 if call == "log" else 3)
    assert len(read_metrics(workdir / "metrics.jsonl")) == 3


def test_a_new_run_does_not_begin_without_and_a_resumed_one_does(wandb, workdir, capsys):
    wandb.failing.add("init")
    with pytest.raises(ValueError, match=r"^track = 'wandb': it cannot begin: no network for init$"):
        MetricWriter(workdir, 9, tracking=MINE)
    with MetricWriter(workdir, 9, 5, MINE) as writer:
        writer.write(6, {"loss": 1.0})
    assert "wandb failed, and the run goes on without it: no network for init" in capsys.readouterr().err


def test_only_the_main_process_writes(wandb, workdir, monkeypatch):
    monkeypatch.setattr(hosts, "is_main", lambda: False)
    with metrics.open_writer(workdir, 9, 0, MINE) as writer:
        writer.write(1, {"loss": 1.0})
    assert not wandb.calls


def test_the_error_names_the_package(workdir, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"track = 'wandb': .* pip install 'based-jax\[wandb\]'"):
        MINE.expect_installed()


def test_damaged_ids(wandb, workdir):
    (workdir / FILE).write_text('{"wandb/mine": 3}')
    with pytest.raises(ValueError, match=f"{FILE} = .*: expected the ids that an earlier launch wrote"):
        MetricWriter(workdir, 9, 5, MINE)


def test_a_training_run_is_tracked(wandb, one_layer, tmp_path):
    workdir = tmp_path / "run"
    lm.train(lm.LMConfig(workdir=workdir, tracking=MINE, **one_layer))
    assert named(wandb, "log") == [dict(line) for line in read_metrics(workdir / "metrics.jsonl")]
    (options,) = named(wandb, "init")
    assert options["config"]["train"]["steps"] == 24
    assert options["config"]["model"]["schedule"] == "L"
