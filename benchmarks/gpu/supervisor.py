"""Supervise the measuring process: replace it if it crashes, hangs or loses its device."""

import contextlib
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

MAX_WORKERS = 12
"""Maximum processes; if more end early, skipping kernels does not help."""

STUCK_SECONDS = 180.0
"""Without an update of the report for so long, the measuring process is replaced."""

POLL_SECONDS = 0.2

PARTING_SECONDS = 5

FINAL = (0, 1, 2, 130)
"""Exit statuses that end the run: done, done with wrong numbers, wrong flags or no GPU, interrupted."""

OWN_SHARE = 0.97
"""Share of the time for measuring processes; the rest is for starting and ending them."""

TIME_OVER = 124
"""Exit status if a process was killed because time ran out; its report stays."""


def watch(
    command: Sequence[str],
    path: Path,
    log: Callable[[str], None],
    resume: bool = False,
    seconds: float = math.inf,
) -> int:
    """Run `command`, restart it with ``--resume`` if it ends early, and return the last exit status.

    Args:
        command: writes `path` whenever it has new results.
        resume: whether the first process resumes an earlier run.
        seconds: time for all processes together; then the running one is killed. They get ``--until=T``
            (seconds since 1970), a little earlier, to end by themselves.
    """
    if seconds < math.inf:
        command = [*command, f"--until={time.time() + OWN_SHARE * seconds:.1f}"]
    status, before = 1, _modified(path)
    ends = time.monotonic() + seconds
    for _ in range(MAX_WORKERS):
        # An existing report may be of another run.
        begun = _modified(path) != before
        process = subprocess.Popen([*command, *(["--resume"] if resume or begun else [])])
        try:
            status = _wait(process, path, ends, log)
        except BaseException:
            # Ctrl-C also reaches the process: give it time to write its report.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PARTING_SECONDS)
            process.kill()
            process.wait()
            raise
        if status == TIME_OVER:
            return status
        begun = _modified(path) != before
        # An uncaught error also has status 1, but without a complete report. Without any report the process
        # never started measuring.
        if status in FINAL and (status != 1 or not begun or _complete(path)):
            return status
        log(f"the measuring process ended with status {status}; another one continues")
    log(f"gave up after {MAX_WORKERS} processes")
    return status


def _wait(process: "subprocess.Popen[bytes]", path: Path, ends: float, log: Callable[[str], None]) -> int:
    written, updated = _modified(path), time.monotonic()
    while (status := process.poll()) is None:
        time.sleep(POLL_SECONDS)
        if (now := _modified(path)) != written:
            written, updated = now, time.monotonic()
        elif time.monotonic() - updated > STUCK_SECONDS:
            log(f"no update of the report for {STUCK_SECONDS:.0f} s")
            process.kill()
        if time.monotonic() > ends:
            log("the time limit is reached")
            process.kill()
            process.wait()
            return TIME_OVER
    return status


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0.0


def _complete(path: Path) -> bool:
    return path.exists() and '"complete": true' in path.read_text()
