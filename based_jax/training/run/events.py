"""Write TensorBoard event files of scalars synchronously, without a thread that may fail unnoticed."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]


class EventFile:
    """A new event file in `directory`, which is created if needed.

    TensorBoard discards the step `restart` and later ones from older files; this file has them again.
    """

    def __init__(self, directory: Path, restart: int | None = None):
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(directory / "events"))
        if restart is not None:
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=restart, session_log=start))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the scalars of one step, without non-finite values."""
        for name, value in metrics.items():
            if math.isfinite(value):
                scalar = summary.scalar(name, value)
                self._writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
