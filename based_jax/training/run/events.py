"""Write TensorBoard event files of scalars synchronously.

The `SummaryWriter` of tensorboardX writes in a thread. A full disk ends that thread, and the run then
waits for it forever.
"""

import math
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]


class EventFile:
    """A new event file in `directory`, which is created if needed.

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
