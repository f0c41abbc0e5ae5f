"""Track experiments: TensorBoard's event files, and optionally Weights & Biases and Trackio.

A tracker receives the same metrics as metrics.jsonl. The event files are part of the run, so a failure to
write them stops it. Services are not: one that fails during the run is dropped with one warning.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import math
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from based_jax.files import read_json
from based_jax.training.run.events import EventFile
from based_jax.validate import expect, expect_choice
from based_jax.whole_file import write_json

FILE = "trackers.json"
"""File in the run's directory with the ids of the run at the services."""


class Tracker(Protocol):
    """A destination of a run's metrics."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step; steps may repeat if a run is resumed."""
        ...

    def close(self) -> None:
        """Finish recording this launch."""
        ...


_Opened = tuple[Callable[[int, dict[str, float]], Any], Callable[[], Any]]
"""A function that logs the metrics of a step, and one that finishes the launch."""


@dataclasses.dataclass(frozen=True)
class TrackConfig:
    """Services that track a run, in addition to its directory."""

    track: str | None = None
    """also send settings and metrics to wandb, trackio, or both: wandb,trackio"""
    track_project: str = "based-jax"
    """project of the run for --track"""

    def __post_init__(self) -> None:
        for name in self.services:
            expect_choice("track", name, tuple(_SERVICES))
        expect(len(set(self.services)) == len(self.services), "track", self.track, "each service once")
        expect(bool(self.track_project.strip()), "track_project", self.track_project, "a name")

    @property
    def services(self) -> list[str]:
        return [] if self.track is None else [name.strip() for name in self.track.split(",")]

    def expect_installed(self) -> None:
        """Raise ImportError early if the package of a service is not installed."""
        for name in self.services:
            if importlib.util.find_spec(name) is None:
                raise ImportError(f"track = {name!r}: not installed; run pip install 'based-jax[{name}]'")


def _wandb(project: str, name: str, identifier: str, config: Mapping[str, Any], workdir: Path) -> _Opened:
    """Open a run of Weights & Biases; WANDB_MODE=offline keeps it on this machine, for `wandb sync`."""
    wandb: Any = importlib.import_module("wandb")
    run = wandb.init(
        project=project,
        name=name,
        id=identifier,  # under which a resumed run continues
        resume="allow",
        dir=str(workdir),
        config=dict(config),
        settings=wandb.Settings(console="off"),  # do not capture the terminal
    )
    # wandb's own step can only grow, and would lose steps that a resumed run repeats.
    run.define_metric("*", step_metric="step")
    return lambda step, metrics: run.log({"step": step, **metrics}), run.finish


def _trackio(project: str, name: str, identifier: str, config: Mapping[str, Any], workdir: Path) -> _Opened:
    """Open a run of Trackio: a database on this machine, or the Space that TRACKIO_SPACE_ID names."""
    del workdir
    trackio: Any = importlib.import_module("trackio")
    unique = f"{name}-{identifier[:8]}"  # a run is resumed by its name
    run = trackio.init(project=project, name=unique, resume="allow", config=dict(config), embed=False)
    # The run's own `finish` would be called again at exit.
    return lambda step, metrics: run.log(metrics, step=step), trackio.finish


_SERVICES: dict[str, Callable[[str, str, str, Mapping[str, Any], Path], _Opened]] = {
    "wandb": _wandb,
    "trackio": _trackio,
}


class _Service:
    """A tracker that may fail: after the first failure, which is a warning, it is dropped."""

    def __init__(self, name: str, opened: _Opened, warn: Callable[[str], None]):
        self._name, self._warn, self._has_failed = name, warn, False
        self._log, self._finish = opened

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._attempt(lambda: self._log(step, finite))

    def close(self) -> None:
        self._attempt(self._finish)

    def _attempt(self, act: Callable[[], Any]) -> None:
        if self._has_failed:
            return
        try:
            with contextlib.redirect_stdout(sys.stderr):  # standard output is for the command's results
                act()
        except Exception as error:  # any failure, as a service is not part of the run
            self._has_failed = True
            self._warn(_failure(self._name, error))


def open_trackers(
    tracking: TrackConfig, workdir: Path, start: int, warn: Callable[[str], None]
) -> list[Tracker]:
    """Open the event files, and the services of `tracking`, for a run that starts after step `start`.

    Args:
        workdir: contains the run's config.json, which is sent to services.
        warn: called with one line if a service fails.

    Raises:
        ImportError: a package is not installed.
        ValueError: a service rejects a new run, which would not be tracked as requested.
        OSError: a file cannot be written.
    """
    tracking.expect_installed()
    path = workdir / "config.json"
    config = read_json(path) if tracking.services and path.is_file() else {}
    project, name = tracking.track_project, workdir.resolve().name
    known = _known_ids(workdir / FILE) if tracking.services and start else {}
    trackers: list[Tracker] = [EventFile(workdir / "events", start + 1 if start else None)]
    for service in tracking.services:
        identifier = known.setdefault(f"{service}/{project}", uuid.uuid4().hex)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                opened = _SERVICES[service](project, name, identifier, config, workdir)
        except Exception as error:
            if not start:
                for tracker in trackers:
                    tracker.close()
                raise ValueError(f"track = {service!r}: it cannot begin: {_first_line(error)}") from error
            warn(_failure(service, error))
        else:
            trackers.append(_Service(service, opened, warn))
    if known:
        write_json(workdir / FILE, known)
    return trackers


def _known_ids(path: Path) -> dict[str, str]:
    found = read_json(path) if path.is_file() else {}
    fits = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    expect(fits, str(path), found, "the ids that an earlier launch wrote")
    return found


def _failure(service: str, error: Exception) -> str:
    return f"{service} failed, and the run goes on without it: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
