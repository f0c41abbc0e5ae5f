"""Runs of ``based-jax train lm`` and the like in processes of their own, and the files that they left."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import pytest

from based_jax.training.commands import lm
from based_jax.training.run.directory import parse_run
from based_jax.training.run.metrics import MetricWriter, read_metrics
from tests.subprocesses import PATIENCE, environment


def flags(settings: dict[str, Any], workdir: Path) -> list[str]:
    """The settings of the fixture `settings`, in words."""
    plain = {key: value for key, value in settings.items() if key != "optimizer"}
    pairs = [(f"--{key.replace('_', '-')}", str(value)) for key, value in plain.items()]
    pairs += [("--learning-rate", "1e-2"), ("--warmup", "0.1"), ("--workdir", str(workdir))]
    return [word for pair in pairs for word in pair]


def command(settings: dict[str, Any], workdir: Path, *more: str, trainer: str = "lm") -> list[str]:
    """The whole command line."""
    return [sys.executable, "-m", f"train.{trainer}", *flags(settings, workdir), *more]


def losses(workdir: Path) -> list[float]:
    """Of all logged steps."""
    return [line["loss"] for line in read_metrics(workdir / "metrics.jsonl")]


def steps_saved(workdir: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    return sorted(int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit())


def start(command: list[str], devices: int = 1) -> subprocess.Popen[str]:
    """The process of a command, with its standard error to read."""
    return subprocess.Popen(
        command, env=environment(devices), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def until(
    step: int, process: subprocess.Popen[str], act: Callable[[subprocess.Popen[str]], Any]
) -> tuple[int, str]:
    """Do something to a process when it logs that step; its status, and what it says from then on."""
    assert process.stderr is not None
    for line in process.stderr:
        match = re.match(r"step (\d+)/", line)
        if match and int(match[1]) >= step:
            act(process)
            break
    _, rest = process.communicate(timeout=PATIENCE)
    return process.returncode, rest


def stop_at(step: int, patch: pytest.MonkeyPatch, number: signal.Signals = signal.SIGTERM) -> None:
    """Have this process send itself a signal when it has logged that step."""
    write = MetricWriter.write

    def stop(writer: MetricWriter, logged: int, *arguments: Any) -> None:
        write(writer, logged, *arguments)
        if logged == step:
            signal.raise_signal(number)

    patch.setattr(MetricWriter, "write", stop)


def resume(workdir: Path, *more: str) -> lm.Run:
    """Continue a run in this process."""
    return lm.train(parse_run(lm.LMConfig, ["--workdir", str(workdir), "--resume", *more], lm.PROG))


def resumes_bit_exactly(workdir: Path, whole: tuple[Path, lm.Run]) -> None:
    """To the end; all losses are those of the run that was left alone."""
    run = resume(workdir)
    assert losses(workdir) == losses(whole[0])
    chex.assert_trees_all_equal(run.outcome.state, whole[1].outcome.state)


def copy_run(run: Path, to: Path, **changes: Any) -> Path:
    """A copy of a run's directory, with changes of its settings."""
    shutil.copytree(run, to)
    config = json.loads((to / "config.json").read_text())
    config["train"].update(changes)
    (to / "config.json").write_text(json.dumps(config))
    return to
