"""Allow one writer per directory, by a lock that is released when its process dies.

The file ``run.lock`` is locked with flock, which the kernel releases when the process ends, for any reason.
Its text names the process, for error messages. flock may not work between hosts that share a file system, so
the holder also updates the file's time every `BEAT` seconds, and a process that finds the name of a process
on another machine first waits `SILENCE` seconds for such an update. Only times of the same file are compared,
since the hosts' clocks may differ.
"""

import contextlib
import datetime
import json
import logging
import os
import platform
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

FILE = "run.lock"

BEAT = 10.0  # seconds between two updates of the file's time
SILENCE = 60.0
"""seconds without an update after which a process on another machine counts as dead; NFS may delay times"""

_LOGGER = logging.getLogger(__name__)


class DirectoryInUse(OSError):
    """Another process writes to the directory."""


class _Holder(NamedTuple):
    """The process that the lock's text describes."""

    machine: str  # the kernel's boot id, or the host's name: flock works between processes with the same one
    host: str
    pid: int
    started: str  # time with its zone

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, which started at {self.started}"


@contextlib.contextmanager
def sole_writer(directory: Path, *, silence: float = SILENCE) -> Iterator[None]:
    """Hold the lock of `directory`, which is created if necessary and removed again if it stays empty.

    `silence`: seconds to wait for an update by a holder on another machine.

    Raises:
        DirectoryInUse: another process, or another block of this one, holds it.
        OSError: the directory cannot be written.
    """
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE
    file = _take(path, silence)
    ended = threading.Event()
    beat = threading.Thread(target=_renew, args=(file.fileno(), ended), name="run-lock", daemon=True)
    beat.start()
    try:
        yield
    finally:
        ended.set()
        beat.join()
        with file, contextlib.suppress(OSError):
            if _is_at(path, file):
                path.unlink()
        with contextlib.suppress(OSError):
            if is_new:
                directory.rmdir()


def _take(path: Path, silence: float) -> IO[str]:
    """Lock the file, write this process's name to it and return it."""
    while True:
        if path.exists() and not path.is_file():
            raise OSError(f"{path}: expected a regular file, the lock of its directory")
        file = path.open("a+", encoding="utf-8", errors="replace")
        try:
            is_held = _flock(file)
            holder = _read(file)
            if is_held is False:
                raise _in_use(path, holder)
            if not _is_at(path, file):  # its holder ended meanwhile and removed it
                file.close()
                continue
            if holder is not None and not (is_held and holder.machine == _machine()):
                _LOGGER.warning("%s names %s: waiting up to %g s for a sign of life", path, holder, silence)
                if _renewed(path, silence):
                    raise _in_use(path, holder)
                _LOGGER.warning("%s: no sign of life of %s; taking over", path, holder)
            file.truncate(0)
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            ourselves = _Holder(_machine(), platform.node(), os.getpid(), now)
            file.write(json.dumps(ourselves._asdict()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            file.close()
            raise
        return file


def _flock(file: IO[str]) -> bool | None:
    """Try to lock the file; return whether this process holds the lock, None if files cannot be locked."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


def _read(file: IO[str]) -> _Holder | None:
    """Return the process named in a lock's text; None if it is empty."""
    file.seek(0)
    text = file.read(4096)
    if not text.strip():
        return None
    try:
        found = json.loads(text)
        return _Holder(str(found["machine"]), str(found["host"]), int(found["pid"]), str(found["started"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return _Holder("", "an unknown host", 0, "an unknown time")


def _renewed(path: Path, silence: float) -> bool:
    """Return whether the file's time changes within `silence` seconds."""
    before, end = path.stat().st_mtime_ns, time.monotonic() + silence
    while time.monotonic() < end:
        time.sleep(min(1.0, silence / 10))
        with contextlib.suppress(FileNotFoundError), path.open() as now:  # opening makes NFS query its server
            if os.fstat(now.fileno()).st_mtime_ns != before:
                return True
    return False


def _renew(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _is_at(path: Path, file: IO[str]) -> bool:
    """Return whether `path` is still the open file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _in_use(path: Path, holder: _Holder | None) -> DirectoryInUse:
    return DirectoryInUse(
        f"{path.parent} is in use by {holder or 'another process'}: expected one writer; wait for it, "
        f"stop it, or choose another directory ({path.name} in it is the lock)"
    )


def _machine() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return platform.node()
