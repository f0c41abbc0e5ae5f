"""Track experiments: TensorBoard's event files, and optionally Weights & Biases.

A tracker receives the same metrics as metrics.jsonl. The event files are part of the run, so a failure to
write them stops it. The service is not: if it fails during the run, it is dropped with one warning.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import math
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from based_jax.files import read_json, write_json
from based_jax.validate import expect

FILE = "trackers.json"
"""File in the run's directory with the id of the run at the service."""


@dataclasses.dataclass(frozen=True)
class TrackConfig:
    """A service that tracks a run, in addition to its directory."""

    track: str | None = None
    """also send settings and metrics to this service: wandb"""
    track_project: str = "based-jax"
    """project of the run for --track"""

    def __post_init__(self) -> None:
        expect(self.track in (None, "wandb"), "track", self.track, "wandb")
        expect(bool(self.track_project.strip()), "track_project", self.track_project, "a name")

    def expect_installed(self) -> None:
        """Raise ImportError early if the package of the service is not installed."""
        if self.track is not None and importlib.util.find_spec(self.track) is None:
            raise ImportError(f"track = {self.track!r}: not installed; run pip install 'based-jax[wandb]'")


class EventFile:
    """A new TensorBoard event file in `directory`, which is created if needed, written synchronously.

    The `SummaryWriter` of tensorboardX writes in a thread. A full disk ends that thread, and the run then
    waits for it forever.
    TensorBoard discards the step `restart` and later ones from older files; this file has them again.
    """

    def __init__(self, directory: Path, restart: int | None = None):
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._records = RecordWriter(str(directory / name))
        self._write(file_version="brain.Event:2")
        if restart is not None:
            self._write(step=restart, session_log={"status": "START"})

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the scalars of one step, without non-finite values."""
        for name, value in metrics.items():
            if math.isfinite(value):
                self._write(step=step, summary={"value": [{"tag": name, "simple_value": value}]})
        self._records.flush()

    def close(self) -> None:
        self._records.flush()
        self._records.close()

    def _write(self, **fields: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())


class _WandbRun:
    """A run of Weights & Biases: after the first failure, which is a warning, it is dropped."""

    def __init__(self, run: Any, warn: Callable[[str], None]):
        self._run, self._warn, self._has_failed = run, warn, False
        # wandb's own step can only grow, and would lose steps that a resumed run repeats.
        run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._attempt(lambda: self._run.log({"step": step, **finite}))

    def close(self) -> None:
        self._attempt(self._run.finish)

    def _attempt(self, act: Callable[[], Any]) -> None:
        if self._has_failed:
            return
        try:
            with contextlib.redirect_stdout(sys.stderr):  # standard output is for the command's results
                act()
        except Exception as error:  # any failure, as the service is not part of the run
            self._has_failed = True
            self._warn(_failure(error))


def open_trackers(
    tracking: TrackConfig, workdir: Path, start: int, warn: Callable[[str], None]
) -> list[EventFile | _WandbRun]:
    """Open the event files, and the service of `tracking`, for a run that starts after step `start`.

    `warn` is called with one line if the service fails later.
    ImportError: its package is not installed. ValueError: it rejects a new run. OSError: a file cannot be
    written.
    """
    tracking.expect_installed()
    identifier = tracking.track and _run_id(workdir / FILE, tracking.track_project, start)
    events = EventFile(workdir / "events", start + 1 if start else None)
    if identifier is None:
        return [events]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return [events, _WandbRun(_wandb(tracking.track_project, identifier, workdir), warn)]
    except Exception as error:
        if not start:
            events.close()
            raise ValueError(f"track = 'wandb': it cannot begin: {_first_line(error)}") from error
        warn(_failure(error))
        return [events]


def _wandb(project: str, identifier: str, workdir: Path) -> Any:
    """Open a run, or continue it; WANDB_MODE=offline keeps it on this machine, for `wandb sync`."""
    wandb: Any = importlib.import_module("wandb")
    path = workdir / "config.json"
    config = read_json(path) if path.is_file() else {}
    options = {"resume": "allow", "dir": str(workdir), "config": config}
    settings = wandb.Settings(console="off")  # do not capture the terminal
    return wandb.init(
        project=project, name=workdir.resolve().name, id=identifier, settings=settings, **options
    )


def _run_id(path: Path, project: str, start: int) -> str:
    """Return the id of the run at the service, which is kept in a file: a new one unless it is resumed."""
    known = read_json(path) if start and path.is_file() else {}
    fits = isinstance(known, dict) and all(isinstance(value, str) for value in known.values())
    expect(fits, str(path), known, "the ids that an earlier launch wrote")
    identifier = known.setdefault(f"wandb/{project}", uuid.uuid4().hex)
    write_json(path, known)
    return identifier


def _failure(error: Exception) -> str:
    return f"wandb failed, and the run goes on without it: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
