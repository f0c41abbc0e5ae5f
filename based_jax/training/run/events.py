"""TensorBoard event files of scalars, written at once: no thread that dies or blocks unseen."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]


class EventFile:
    """A new event file in `directory`, which is created if need be.

    TensorBoard forgets the step `restart` and what followed it in older files: this file has them anew.
    """

    def __init__(self, directory: Path, restart: int | None = None):
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(directory / "events"))
        if restart is not None:
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=restart, session_log=start))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Scalars of one step; what is not finite has no place in a curve."""
        for name, value in metrics.items():
            if math.isfinite(value):
                scalar = summary.scalar(name, value)
                self._writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
