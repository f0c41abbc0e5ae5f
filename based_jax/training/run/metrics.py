"""Write a run's metrics to metrics.jsonl, trackers such as TensorBoard, and the terminal."""

import contextlib
import json
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from based_jax.files import read_lines, write_lines
from based_jax.training.devices import hosts
from based_jax.training.run.checkpoints import last_checkpoint
from based_jax.training.run.progress import RunProgress
from based_jax.training.run.trackers import TrackConfig, open_trackers

_LOGGER = logging.getLogger(__name__)


class MetricWriter:
    """Writes one JSON object per logged step, passes its metrics to the trackers, and shows some of them.

    On resuming, lines after the restored step are dropped, as they will be written again. Lines that are not
    metrics are dropped too; the original file is kept as damaged_metrics.jsonl.
    """

    def __init__(self, workdir: Path, steps: int, start: int = 0, tracking: TrackConfig | None = None):
        self.path = workdir / "metrics.jsonl"
        _keep_until(self.path, start)
        self._progress = RunProgress(steps, start)
        # Move the bar; show a phase between two steps; write a line above the bar.
        self.tick, self.phase, self.say = self._progress.tick, self._progress.phase, self._progress.event
        self._trackers = open_trackers(tracking or TrackConfig(), workdir, start, self.say)
        self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> "MetricWriter":
        self._progress.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._progress.__exit__(kind, error, trace)
        for file in (*self._trackers, self._file):
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
            for tracker in self._trackers:
                tracker.write(step, metrics)
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


def open_writer(*settings: Any) -> Any:
    """Return the `MetricWriter` of a run's main process; in the others, one that does nothing."""
    return MetricWriter(*settings) if hosts.is_main() else _SilentWriter()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines of a metrics.jsonl; a last line truncated by a crash is ignored.

    Lines that are not metrics are omitted, with a warning that names the file.
    """
    entries, damaged = read_lines(path, {"step": int})
    if damaged:
        _LOGGER.warning("%s is damaged: %s left out", path, damaged)
    return entries


def _keep_until(path: Path, step: int) -> None:
    entries, damaged = read_lines(path, {"step": int})
    write_lines(path, [entry for entry in entries if entry["step"] <= step], damaged)
