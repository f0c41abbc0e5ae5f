"""``based-jax compare``, with trainers that are a script of the test: plan, files, resuming, refusals."""

import json
import re
import sys

import pytest

from based_jax.compare import __main__ as compare
from based_jax.experiments import study
from based_jax.experiments.job import Job
from based_jax.experiments.runner import Slot
from based_jax.mixers import registry
from tests.commands import Ended, run_here
from tests.floors import ROOT

# Takes the trainer's flags. A mixer without options recalls more.
TRAINER = """
import json, pathlib, sys
words = [*sys.argv]
flags = dict(zip(words, words[1:]))
workdir = pathlib.Path(flags["--workdir"])
(workdir / "model").mkdir()
accuracy = int(flags["--d-model"]) / (200 if "=" in flags["--mixer"] else 100)
record = {"learning_rate": 0.01, "seed": 0, "status": "finished", "accuracy": accuracy, "seconds": 3.0,
          "epochs": int(flags["--epochs"]), "d_model": int(flags["--d-model"]), "parameters": 5000,
          "state_size": 1000, "state_bytes": 4096, "slices": {"num_pairs": {"8": accuracy}}}
(workdir / "results.jsonl").write_text(json.dumps(record) + "\\n")
"""

MIXERS = '''
import based_jax as bj


class Plain(bj.mixers.ShortConv):
    """A short convolution from elsewhere."""


class Uncounted(Plain):
    """A mixer whose state has no size."""

    def state_size(self, length):
        return 0.5
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory, where a module of mixers is."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mixers.py").write_text(MIXERS)
    (tmp_path / "trainer.py").write_text(TRAINER)
    for job in (Job, compare.ComparedJob):
        monkeypatch.setattr(job, "trainer", (sys.executable, str(tmp_path / "trainer.py")))
    monkeypatch.setattr(study, "find_slots", lambda count: [Slot("0", {}), Slot("1", {})])
    monkeypatch.setattr(registry.MIXERS, "entries", dict(registry.MIXERS.entries))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("elsewhere", "min_gru")]:
        del sys.modules[name]


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Runs the command in the folder; laws are not checked, and cards only have their names."""

    def card(model, name):
        assert model.is_dir()
        missing = {key: {"not_measured": str(model)} for key in ("mqar", "hits", "probe", "state", "parts")}
        facts = {"name": name, "vocab_size": 8, "examples": 1, "seed": 0, "length": 8, "model": {}}
        return {**facts, **missing}

    monkeypatch.setattr(compare, "recall_card", card)
    monkeypatch.setattr(compare, "check_mixer", lambda mixer, **options: None)

    def run(*argv: object) -> Ended:
        return run_here(compare.PROG, compare.main, argv, capsys)

    return run


def rows(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_dry_run_prints_the_plan(run, folder):
    done = run("elsewhere.mixers:Plain:kernel_size=3", "attention", "--widths", "16", "--dry-run")
    plain, attention, total = done.out.splitlines()
    assert plain.startswith("plain, d 16, kernel_size 3: ")
    assert re.fullmatch(r"Attention, d 16: [\d,]+ parameters, [\d,]+ bytes of state", attention)
    assert total == "2 models, 6 epochs each"
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_a_comparison_and_its_next_line(run, folder):
    plain, flags = "elsewhere.mixers:Plain:kernel_size=3", ["--scale", "smoke", "--out", "out"]
    done = run(plain, "based", *flags, "--epochs", 8)
    assert done.status == 0
    first, out = rows(folder / "out"), folder / "out"
    assert {(row["family"], row["setting"]) for row in first} == {
        *(("Based", f"d {width}") for width in (16, 32)),
        *(("plain", f"d {width}, kernel_size 3") for width in (16, 32)),
    }
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert f"based-jax compare {plain} based --scale smoke" in (out / "index.html").read_text()
    cards = {path.stem: json.loads(path.read_text()) for path in (out / "cards").glob("*.json")}
    assert cards.keys() == {"Based", "plain"}
    assert "plain-d-32-kernel-size-3-" in cards["plain"]["mqar"]["not_measured"]  # the better width
    assert "--layers" not in first[0]["command"]

    assert run(plain, "based", "attention", *flags).status == 0
    assert rows(out)[: len(first)] == first
    assert {row["family"] for row in rows(out)[len(first) :]} == {"Attention"}
    assert {row["epochs"] for row in rows(out)} == {8}
    refused = run(plain, *flags, "--epochs", 9)
    assert "based-jax compare: out = 'out': expected another directory" in refused.err


def test_another_task_has_no_card(run, folder):
    done = run("based", "--task", "forgetting", "--scale", "smoke", "--widths", "8", "--out", "out")
    assert done.status == 0
    assert "--task forgetting:num_updates=2" in rows(folder / "out")[0]["command"]
    assert not (folder / "out" / "cards").exists()


def test_refusals_come_before_training(run, folder):
    refused = {
        ("basd",): "mixers = 'basd': expected package.module:Class, or one of based, .*did you mean 'based'",
        ("elsewhere.mixrs",): "mixer = 'elsewhere.mixrs': cannot import elsewhere.mixrs: No module named",
        ("elsewhere.mixers",): "elsewhere.mixers:Class, where Class is one of Plain, Uncounted",
        ("elsewhere.mixers:Plan",): "did you mean 'Plain'",
        ("elsewhere.mixers:Plain:kernel=3",): "option of plain = 'kernel': .* did you mean 'kernel_size'",
        ("based:feature_dim",): "mixers = 'based:feature_dim': expected NAME or NAME:option=value",
        ("based", "--task", "forgeting"): "task = 'forgeting': .* did you mean 'forgetting'",
        ("based", "--task", "parity", "--scale", "paper"): "scale = 'paper': expected cpu or smoke",
        ("based", "--widths", "16,x"): "widths = '16,x': expected numbers such as 32,64",
        ("based", "--learning-rates", "x"): "learning_rates = 'x': expected numbers",
        ("--scale", "smoke"): "mixers",
    }
    for words, message in refused.items():
        done = run(*words, "--out", "out")
        assert done.status == 2, words
        assert re.search(message, done.err.splitlines()[-1]), done.err
        assert not (folder / "out" / "results.jsonl").exists()


def test_a_mixer_that_breaks_a_law_is_not_trained(folder, capsys):
    done = run_here(compare.PROG, compare.main, ["elsewhere.mixers:Uncounted", "--out", "out"], capsys)
    assert done.status == 2
    broken = "Uncounted breaks the contract: what a call returns: state_size(100) = 0.5, expected an integer"
    assert done.err.splitlines()[-1] == f"based-jax compare: {broken}"
    assert not (folder / "out" / "results.jsonl").exists()


def test_the_page_of_mixers_runs(run, folder):
    """Its commands, with the mixer that it writes."""
    page = (ROOT / "docs" / "adding_a_mixer.md").read_text()
    (folder / "min_gru.py").write_text(re.search(r"```python\n(.*?)```", page, flags=re.S)[1])
    section = page.partition("## 5. Compare its recall")[2].partition("\n## ")[0]
    commands = re.findall(r"^based-jax compare (.*)$", section, flags=re.M)
    assert commands
    for words in commands:
        assert "min_gru" in run(*words.split(), "--dry-run").out
