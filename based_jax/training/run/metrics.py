"""Write a run's metrics to metrics.jsonl, event files of TensorBoard, and the terminal."""

import contextlib
import json
import logging
import math
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from based_jax.files import read_lines, write_lines
from based_jax.training.devices import hosts
from based_jax.training.run.checkpoints import last_checkpoint
from based_jax.training.run.progress import RunProgress

_LOGGER = logging.getLogger(__name__)


class EventFile:
    """A new TensorBoard event file in `directory`, which is created if needed, written synchronously.

    The `SummaryWriter` of tensorboardX writes in a thread. A full disk ends that thread, and the run then
    waits for it forever.
    TensorBoard discards the step `restart` and later ones from older files; this file has them again.
    """

    def __init__(self, directory: Path, restart: int):
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._records = RecordWriter(str(directory / name))
        self._write(file_version="brain.Event:2")
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


class MetricWriter:
    """Writes one JSON object and one event per logged step, and shows some of its metrics.

    On resuming, lines after the restored step are dropped, as they will be written again. Lines that are not
    metrics are dropped too; the original file is kept as damaged_metrics.jsonl.
    """

    def __init__(self, workdir: Path, steps: int, start: int = 0):
        self.path = workdir / "metrics.jsonl"
        entries, damaged = read_lines(self.path, {"step": int})
        write_lines(self.path, [entry for entry in entries if entry["step"] <= start], damaged)
        self._progress = RunProgress(steps, start)
        # Move the bar; show a phase between two steps; write a line above the bar.
        self.tick, self.phase, self.say = self._progress.tick, self._progress.phase, self._progress.event
        self._events = EventFile(workdir / "events", start + 1)
        self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> "MetricWriter":
        self._progress.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._progress.__exit__(kind, error, trace)
        for file in (self._events, self._file):
            # If there was an earlier error, report that one.
            with contextlib.nullcontext() if error is None else contextlib.suppress(OSError):
                file.close()

    def write(self, step: int, metrics: Mapping[str, float], shown: Collection[str] | None = None) -> None:
        """Record the metrics of `step`, floats with all digits; show the `shown` ones on the terminal."""
        # JSON has no NaN or infinity, which are written as null.
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        try:
            self._file.write(json.dumps({"step": step, **finite}) + "\n")
            self._file.flush()
            self._events.write(step, metrics)
        except OSError as error:
            workdir = self.path.parent
            raise OSError(
                f"the metrics of step {step} cannot be written below {workdir}: {error}; "
                f"last complete checkpoint: {last_checkpoint(workdir)}"
            ) from error
        self._progress.show(step, {name: metrics[name] for name in (metrics if shown is None else shown)})


class _SilentWriter(contextlib.nullcontext):
    """A `MetricWriter` for processes that do not write: every method does nothing."""

    def __enter__(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: contextlib.nullcontext()


def open_writer(workdir: Path, steps: int, start: int) -> Any:
    """Return the `MetricWriter` of a run's main process; in the others, one that does nothing."""
    return MetricWriter(workdir, steps, start) if hosts.is_main() else _SilentWriter()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines of a metrics.jsonl; a last line truncated by a crash is ignored.

    Lines that are not metrics are omitted, with a warning that names the file.
    """
    entries, damaged = read_lines(path, {"step": int})
    if damaged:
        _LOGGER.warning("%s is damaged: %s left out", path, damaged)
    return entries
