"""Where a run's numbers go: metrics.jsonl, TensorBoard event files, and the terminal."""

import contextlib
import json
import math
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from train import hosts
from train.events import EventFile
from train.progress import RunProgress


class MetricWriter:
    """Writes one JSON object per logged step, the same numbers as events, and shows them on the terminal.

    On resume the lines after the restored step are dropped: they are about to be written again.
    """

    def __init__(self, workdir: Path, steps: int, start: int = 0):
        self.path = workdir / "metrics.jsonl"
        _keep_until(self.path, start)
        self._file = self.path.open("a", encoding="utf-8")
        self._events = EventFile(workdir / "events", start + 1 if start else None)
        self._progress = RunProgress(steps, start)

    def __enter__(self) -> "MetricWriter":
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        # An earlier error is the one to report.
        with contextlib.nullcontext() if error is None else contextlib.suppress(OSError):
            self._events.close()
        with contextlib.nullcontext() if error is None else contextlib.suppress(OSError):
            self._file.close()

    def write(self, step: int, metrics: Mapping[str, float], shown: Collection[str] | None = None) -> None:
        """Record the metrics of `step` (floats keep all their digits); `shown` ones are on the terminal."""
        # JSON has no NaN or infinity; where one is logged at all it stands as null.
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        try:
            self._file.write(json.dumps({"step": step, **finite}) + "\n")
            self._file.flush()
            self._events.write(step, metrics)
        except OSError as error:
            raise OSError(
                f"the metrics of step {step} cannot be written below {self.path.parent}: {error}"
            ) from error
        names = metrics if shown is None else shown
        self._progress.show(step, {name: metrics[name] for name in names})

    def rewind(self, step: int) -> None:
        """Drop the lines after `step`, which are about to be written again."""
        self._file.close()
        _keep_until(self.path, step)
        self._file = self.path.open("a", encoding="utf-8")
        self._progress.tick(step)

    def tick(self, step: int) -> None:
        """Move the progress bar only."""
        self._progress.tick(step)

    def phase(self, text: str, expected: str = "") -> AbstractContextManager[None]:
        """Show on the terminal what takes time between two steps; see `RunProgress.phase`."""
        return self._progress.phase(text, expected)

    def say(self, message: str) -> None:
        """Write a line on the terminal, above the progress bar."""
        self._progress.event(message)


class SilentWriter(MetricWriter):
    """Of the processes of a run that do not write."""

    def __init__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> "SilentWriter":
        return self

    def write(self, step: int, metrics: Mapping[str, float], shown: Collection[str] | None = None) -> None:
        pass

    def rewind(self, step: int) -> None:
        pass

    def tick(self, step: int) -> None:
        pass

    def phase(self, text: str, expected: str = "") -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def say(self, message: str) -> None:
        pass


def open_writer(workdir: Path, steps: int, start: int = 0) -> MetricWriter:
    """The writer of a run's main process; one that does nothing in the others."""
    return MetricWriter(workdir, steps, start) if hosts.is_main() else SilentWriter()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a metrics.jsonl; a last line that a crash cut short is ignored."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _keep_until(path: Path, step: int) -> None:
    kept = [json.dumps(entry) + "\n" for entry in read_metrics(path) if entry["step"] <= step]
    path.write_text("".join(kept), encoding="utf-8")
