"""Services that follow a run: what they get, when they are continued, and that they never stop it."""

import importlib
import json
import sys
import types

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
    def log(self, values, step=None):
        note("log", values, step)
    def finish(self):
        note("finish")

def init(**options):
    note("init", options)
    return Run()

finish = Run().finish
"""


@pytest.fixture
def services(tmp_path, monkeypatch) -> types.SimpleNamespace:
    """A stub, as packages that are installed."""
    (tmp_path / "stubs").mkdir()
    for name in ("wandb", "trackio"):
        (tmp_path / "stubs" / f"{name}.py").write_text(STUB)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "stubs"))
    yield types.SimpleNamespace(**{name: importlib.import_module(name) for name in ("wandb", "trackio")})
    for name in ("wandb", "trackio"):
        sys.modules.pop(name, None)


@pytest.fixture
def workdir(tmp_path):
    """Of a run that has its config.json."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "config.json").write_text('{"train": {"seed": 3}}')
    return tmp_path / "first"


BOTH = TrackConfig("wandb,trackio", "mine")


def named(module, name: str) -> list:
    return [values[0] if values else None for called, *values in module.calls if called == name]


def test_what_they_get(services, workdir, capsys):
    with MetricWriter(workdir, 2, tracking=BOTH) as writer:
        writer.write(1, {"loss": 0.5, "grad_norm": float("inf")})
        writer.write(2, {"loss": 0.25})
    (options,) = named(services.wandb, "init")
    assert options["config"] == {"train": {"seed": 3}}
    assert (options["project"], options["name"], options["dir"]) == ("mine", "first", str(workdir))
    assert options["settings"].options == {"console": "off"}
    assert named(services.wandb, "log") == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    (options,) = named(services.trackio, "init")
    assert options["config"] == {"train": {"seed": 3}}
    assert options["project"] == "mine"
    assert [call for call in services.trackio.calls if call[0] == "log"] == [
        ("log", {"loss": 0.5}, 1),
        ("log", {"loss": 0.25}, 2),
    ]
    assert [module.calls[-1] for module in (services.wandb, services.trackio)] == [("finish",)] * 2
    assert not capsys.readouterr().out  # which has the command's results


def test_a_resumed_run_is_the_same_and_a_new_one_is_another(services, workdir):
    for start in (0, 1, 5, 0):
        with MetricWriter(workdir, 9, start, BOTH):
            pass
    ids = [options["id"] for options in named(services.wandb, "init")]
    names = [options["name"] for options in named(services.trackio, "init")]
    for found in (ids, names):
        assert found[0] == found[1] == found[2] != found[3]
    assert {options["resume"] for options in named(services.trackio, "init")} == {"allow"}
    assert json.loads((workdir / FILE).read_text())["wandb/mine"] == ids[3]


def test_one_that_fails_is_left_out_with_one_warning(services, workdir, capsys):
    services.wandb.failing.add("log")
    with MetricWriter(workdir, 9, tracking=BOTH) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"loss": 1.0 / step})
    warned = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    assert warned == ["wandb failed, and the run goes on without it: no network for log"]
    assert len(named(services.wandb, "log")) == 1
    assert len(named(services.trackio, "log")) == len(read_metrics(workdir / "metrics.jsonl")) == 3


@pytest.mark.parametrize("service", ["wandb", "trackio"])
def test_a_failure_at_the_end(service, services, workdir, capsys):
    getattr(services, service).failing.add("finish")
    with MetricWriter(workdir, 9, tracking=BOTH) as writer:
        writer.write(1, {"loss": 1.0})
    assert f"{service} failed, and the run goes on without it: no " in capsys.readouterr().err


def test_a_new_run_does_not_begin_without_and_a_resumed_one_does(services, workdir, capsys):
    services.wandb.failing.add("init")
    with pytest.raises(ValueError, match=r"^track = 'wandb': it cannot begin: no network for init$"):
        MetricWriter(workdir, 9, tracking=BOTH)
    with MetricWriter(workdir, 9, 5, BOTH) as writer:
        writer.write(6, {"loss": 1.0})
    assert "wandb failed, and the run goes on without it: no network for init" in capsys.readouterr().err
    assert len(named(services.trackio, "log")) == 1


def test_only_the_main_process_writes(services, workdir, monkeypatch):
    monkeypatch.setattr(hosts, "is_main", lambda: False)
    with metrics.open_writer(workdir, 9, 0, BOTH) as writer:
        writer.write(1, {"loss": 1.0})
    assert not services.wandb.calls
    assert not services.trackio.calls


@pytest.mark.parametrize("service", ["wandb", "trackio"])
def test_the_error_names_the_package(service, workdir, monkeypatch):
    monkeypatch.setitem(sys.modules, service, None)
    with pytest.raises(ImportError, match=rf"track = '{service}': .* pip install 'based-jax\[{service}\]'"):
        TrackConfig(service).expect_installed()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"track": "wand"}, "track = 'wand': expected one of 'wandb', 'trackio'; did you mean 'wandb'"),
        ({"track": ""}, "track = ''"),
        ({"track": "wandb,wandb"}, "track = 'wandb,wandb': expected each service once"),
        ({"track_project": " "}, "track_project = ' ': expected a name"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        TrackConfig(**options)


def test_damaged_ids(services, workdir):
    (workdir / FILE).write_text('{"wandb/mine": 3}')
    with pytest.raises(ValueError, match=f"{FILE} = .*: expected the ids that an earlier launch wrote"):
        MetricWriter(workdir, 9, 5, BOTH)


def test_a_training_run_is_tracked(services, one_layer, tmp_path):
    workdir = tmp_path / "run"
    lm.train(lm.LMConfig(workdir=workdir, tracking=BOTH, **one_layer))
    logged = named(services.wandb, "log")
    assert logged == [dict(line) for line in read_metrics(workdir / "metrics.jsonl")]
    (options,) = named(services.wandb, "init")
    assert options["config"]["train"]["steps"] == 24
    assert options["config"]["model"]["schedule"] == "L"
