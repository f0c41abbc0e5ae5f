"""Supervise the process that measures a section: replace it if it crashes, hangs or loses its device."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gpu import journal

MAX_PROCESSES = 12
"""Maximum processes of a section; if more end early, leaving out what ended them does not help."""

WRONG, DEVICE_LOST, INTERRUPTED = 2, 75, 130
"""Exit statuses: wrong flags or no GPU, a process whose device stopped answering, and Ctrl-C."""


def watch(command: Sequence[str], path: Path, seconds: float, log: Callable[[str], None]) -> int:
    """Run `command` until it ends by itself, makes no progress, or time is over; return its exit status.

    Args:
        command: appends to the journal `path`, and leaves out what was running when the last process ended.
        seconds: time for all processes together; then the running one is killed, which is no failure.
    """
    ends, status = time.monotonic() + seconds, 1
    for _ in range(MAX_PROCESSES):
        before = len(journal.lines(path))
        try:
            status = subprocess.run(command, timeout=ends - time.monotonic()).returncode
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as end:
            if path.exists():  # what was running broke nothing
                journal.append({"status": journal.STOPPED}, path)
            log("the time limit is reached" if isinstance(end, subprocess.TimeoutExpired) else "interrupted")
            return 0 if isinstance(end, subprocess.TimeoutExpired) else INTERRUPTED
        if status in (0, WRONG, INTERRUPTED) or len(journal.lines(path)) == before:
            return status
        log(f"the measuring process ended with status {status}; another one continues")
    log(f"gave up after {MAX_PROCESSES} processes")
    return status
