"""Allow one writer per directory, by a lock that is released when its process dies.

The file ``run.lock`` is locked with flock, which the kernel releases when the process ends, for any reason.
Its text names the process, for error messages. Hosts that share a file system see each other's locks if the
file system has them, as NFS does.
"""

import contextlib
import datetime
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from based_jax.files import naming, remove_unfinished

FILE = "run.lock"


class DirectoryInUse(OSError):
    """Another process writes to the directory."""


@contextlib.contextmanager
def sole_writer(directory: Path) -> Iterator[None]:
    """Hold the lock of `directory`, which is created if necessary and removed again if it stays empty.

    Unfinished files of a killed writer (`whole_file`) are removed.

    Raises:
        DirectoryInUse: another process, or another block of this one, holds it.
        OSError: the directory cannot be written.
    """
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise OSError(f"{directory}: expected a directory or a new path ({error.strerror})") from error
    path = directory / FILE
    file = _take(path)
    try:
        remove_unfinished(directory)
        yield
    finally:
        with file, contextlib.suppress(OSError):
            if _is_at(path, file):
                path.unlink()
        with contextlib.suppress(OSError):
            if is_new:
                directory.rmdir()


def _take(path: Path) -> IO[str]:
    """Lock the file, write this process's name to it and return it."""
    while True:
        if path.exists() and not path.is_file():
            raise OSError(f"{path}: expected a regular file, the lock of its directory")
        with naming(path), contextlib.ExitStack() as on_error:
            file = on_error.enter_context(path.open("a+", encoding="utf-8", errors="replace"))
            if not _flock(file):
                file.seek(0)
                holder = " ".join(file.read(200).split()) or "another process"
                raise DirectoryInUse(
                    f"{path.parent} is in use by {holder}: expected one writer; wait for it, stop it, or "
                    f"choose another directory ({FILE} in it is the lock)"
                )
            if not _is_at(path, file):  # its holder ended meanwhile and removed it
                continue
            file.truncate(0)
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            file.write(f"process {os.getpid()} on {platform.node()}, which started at {now}\n")
            file.flush()
            on_error.pop_all()
            return file


def _flock(file: IO[str]) -> bool:
    """Lock the file, where files can be locked; return False if another process holds the lock."""
    try:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # not a POSIX system, or a file system without locks
        return True
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Return whether `path` is still the open file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
