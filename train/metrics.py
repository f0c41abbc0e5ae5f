"""Where a run's numbers go: metrics.jsonl, TensorBoard event files, and the terminal."""

import contextlib
import json
import logging
import math
import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from based_jax.convert.whole_file import whole_file
from train import hosts
from train.checkpoints import last_checkpoint
from train.events import EventFile
from train.progress import RunProgress

_LOGGER = logging.getLogger(__name__)


class MetricWriter:
    """Writes one JSON object per logged step, the same numbers as events, and shows them on the terminal.

    On resume the lines after the restored step are dropped: they are about to be written again. So are lines
    that are no metrics; the file with them stays as damaged_metrics.jsonl.
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
                f"the metrics of step {step} cannot be written below {self.path.parent}: {error}; "
                f"last complete checkpoint: {last_checkpoint(self.path.parent)}"
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
    """All complete lines of a metrics.jsonl; a last line that a crash cut short is ignored.

    Lines that are no metrics are left out, with a warning that names the file.
    """
    entries, damaged = read_lines(path, {"step": int})
    if damaged:
        _LOGGER.warning("%s is damaged: %s left out", path, damaged)
    return entries


def read_lines(path: Path, keys: Mapping[str, type]) -> tuple[list[dict[str, Any]], str]:
    """The complete lines of a file of JSON objects, and in words which are none; "" if all are.

    Args:
        path: no lines if it does not exist.
        keys: what each object has, and the types of these values.

    Raises:
        OSError: it cannot be read, or is a directory or a pipe.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: expected a regular file")
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    entries, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line.decode())
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict) and all(type(entry.get(name)) is kind for name, kind in keys.items()):
            entries.append(entry)
        else:
            damaged.append(number)
    more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
    return entries, f"line {', '.join(map(str, damaged[:3]))}{more}" if damaged else ""


def write_lines(path: Path, entries: Collection[Mapping[str, Any]], damaged: str = "") -> None:
    """Replace a file of JSON objects, whole or not at all.

    Args:
        path: the file; with `damaged` lines it is kept beside the new one, and a warning says where.
        entries: its new lines.
        damaged: what `read_lines` reported.
    """
    if damaged:
        kept = path.with_name(f"damaged_{path.name}")
        os.replace(path, kept)
        _LOGGER.warning("%s is damaged: %s left out; the file as it was is now %s", path, damaged, kept)
    with whole_file(path) as file:
        file.writelines(f"{json.dumps(entry)}\n".encode() for entry in entries)


def _keep_until(path: Path, step: int) -> None:
    entries, damaged = read_lines(path, {"step": int})
    write_lines(path, [entry for entry in entries if entry["step"] <= step], damaged)
