"""Save a run's checkpoints with Orbax: atomic, asynchronous, the newest N kept, with the data position.

Checksums of a checkpoint's files find damage and foreign files before training resumes.
"""

import contextlib
import inspect
import json
import logging
import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

from based_jax.files import read_json, write_json
from based_jax.training.devices import hosts

State = TypeVar("State")

CHECKSUMS = "checksums.json"
_CHUNK = 1 << 24  # bytes
_FOLDERS = ("data", "state")  # of a checkpoint

_LOGGER = logging.getLogger(__name__)


class SaveFailed(OSError):
    """A checkpoint could not be written; earlier ones are unchanged."""


class Checkpoints:
    """The checkpoints in ``workdir/checkpoints``.

    A checkpoint becomes visible only when it is complete; a process that dies while writing leaves the
    previous one intact. With several processes each writes the shards of its devices into one shared
    directory, and all of them call every method. The newest `keep` are kept.
    """

    def __init__(self, workdir: Path, keep: int = 3):
        self.directory = (workdir / "checkpoints").absolute()
        self._damaged = workdir.absolute() / "damaged_checkpoints"
        self._saving = ""  # the step's name
        if self.directory.exists() and not self.directory.is_dir():
            raise OSError(f"{self.directory}: expected a directory of checkpoints, found a file")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            cleanup_tmp_directories=True,
            # Runs in one process, after all files are written and before the checkpoint is renamed.
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_checksums),
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        elif jax.process_count() == 1:  # with several, the others may be waiting for this one
            with contextlib.suppress(Exception):
                self.close()

    def newest_intact(self) -> int | None:
        """Return the step of the newest undamaged checkpoint; None if there are no checkpoints.

        Everything named after a newer step is moved to ``workdir/damaged_checkpoints`` with a warning:
        damaged checkpoints and other files.

        ValueError: there are checkpoints, and all are damaged.
        """
        found = hosts.from_main(self._newest_intact)
        self._manager.reload()
        return found if found >= 0 else None

    def _newest_intact(self) -> int:
        damaged: list[tuple[Path, str]] = []
        for step, path in reversed(_entries(self.directory)):
            reason = f"the name of a checkpoint of step {step} is {step}"
            if path.name == str(step):
                reason = _find_damage(path, step)
            if reason is None:
                for other, why in damaged:
                    self._put_aside(other, f"{why}; falling back to {path}")
                return step
            damaged.append((path, reason))
        if damaged:
            path, reason = damaged[0]
            raise ValueError(f"checkpoint {path} is damaged, and so are all before it: {reason}")
        return -1

    def _put_aside(self, path: Path, why: str) -> None:
        self._damaged.mkdir(exist_ok=True)
        moved = self._damaged / path.name
        while os.path.lexists(moved):
            moved = moved.with_name(f"{moved.name}_")
        path.rename(moved)
        _LOGGER.warning("checkpoint %s is damaged: %s, and it is now %s", path, why, moved)

    def save(self, step: int, state: Any, data: dict[str, Any]) -> None:
        """Start writing a pytree and JSON data; arrays are copied first, so the caller may donate them.

        SaveFailed: this save cannot be started, or the previous one could not be finished.
        """
        self.wait()
        self._saving = str(step)
        with self._explain():
            arrays: Any = ocp.args.StandardSave(state)  # pyright: ignore[reportCallIssue]
            position: Any = ocp.args.JsonSave({"state": json.dumps(data)})  # pyright: ignore[reportCallIssue]
            self._manager.save(step, args=ocp.args.Composite(state=arrays, data=position))

    def restore(self, step: int, abstract: State) -> tuple[State, dict[str, Any]]:
        """Read a checkpoint into the shapes and shardings of `abstract`; ValueError if that fails."""
        arrays: Any = ocp.args.StandardRestore(abstract)  # pyright: ignore[reportCallIssue]
        restored = self._read(step, state=arrays)
        return restored["state"], self._position(restored["data"])

    def position(self, step: int) -> dict[str, Any]:
        """Read only the JSON data of a checkpoint, if they are needed before `restore`."""
        return self._position(self._read(step)["data"])

    def _read(self, step: int, **items: Any) -> Any:
        try:
            wanted = ocp.args.Composite(**items, data=ocp.args.JsonRestore())
            return self._manager.restore(step, args=wanted)
        except Exception as error:  # Orbax raises Exception itself for an array that it cannot read
            path = self.directory / str(step)
            raise ValueError(f"checkpoint {path} cannot be restored: {_reason(error)}") from error

    def _position(self, data: Any) -> dict[str, Any]:
        try:
            return dict(json.loads(data["state"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{self.directory} has no position in the data: {error!r:.200}") from error

    def check(self) -> None:
        """Raise `SaveFailed` if a save has failed, without waiting."""
        with self._explain():
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Block until all saves are on disk; raise `SaveFailed` if one fails."""
        with self._explain():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Finish writing, as `wait` does, and release the manager's threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def _write_checksums(self) -> None:
        for directory in self.directory.glob(f"{self._saving}.*"):  # Orbax's only temporary name
            write_json(directory / CHECKSUMS, {"step": int(self._saving), **_checksums(directory)})

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise SaveFailed(
                f"checkpoint {self.directory / self._saving} cannot be written: {_reason(error)}; "
                f"last complete checkpoint: {last_checkpoint(self.directory.parent)}"
            ) from error


def last_checkpoint(workdir: Path) -> str:
    """Return the path of a run's newest checkpoint, or "none", for a message."""
    steps = _entries(workdir.absolute() / "checkpoints")
    return str(steps[-1][1]) if steps else "none"


@contextlib.contextmanager
def naming_the_last_checkpoint(workdir: Path, path: Path) -> Iterator[None]:
    """Turn an OSError from writing `path` into a SaveFailed that names the last complete checkpoint."""
    try:
        yield
    except OSError as error:
        saved = last_checkpoint(workdir)
        again = f"the run is not lost, --resume writes it again from its last complete checkpoint: {saved}"
        then = again if saved != "none" else "there is no checkpoint yet"
        raise SaveFailed(f"{path} cannot be written: {error.strerror or error}; {then}") from error


def start_logging() -> None:
    """Log messages to standard error, for commands; report a failed save only through its exception.

    Orbax also logs the traceback of each of its threads, and writes that end after it has given up leave
    errors that are never awaited.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("based_jax.data.reading").setLevel(logging.ERROR)  # a run's summary reports it already

    def hook(unraisable: Any) -> None:
        orphan = inspect.iscoroutine(unraisable.object) or str(unraisable.exc_value) == "Event loop is closed"
        if not orphan:
            sys.__unraisablehook__(unraisable)

    sys.unraisablehook = hook


def _entries(directory: Path) -> list[tuple[int, Path]]:
    """List the entries of a checkpoint directory that are named after a step, by step."""
    paths = [path for path in directory.glob("*") if path.name.isascii() and path.name.isdigit()]
    return sorted((int(path.name), path) for path in paths)


def _reason(error: BaseException) -> str:
    """Return the operating system's message if TensorStore quotes an error code, else the first line."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    if code:
        return os.strerror(int(code[1]))
    return str(error).partition("\n")[0].partition(" See full TensorStore details")[0] or type(error).__name__


def _find_damage(directory: Path, step: int) -> str | None:
    """Describe damage of the files of a step's checkpoint; None if they are as written."""
    path = directory / CHECKSUMS
    try:
        if not directory.is_dir():
            return "it is no directory"
        if not path.exists():
            return f"it has no {CHECKSUMS}"
        content = read_json(path)
        if content.get("step", step) != step:
            return f"it is a checkpoint of step {content['step']}"
        recorded = {name: pair for name, pair in content.items() if isinstance(pair, list)}
        if not {name.partition("/")[0] for name in recorded}.issuperset(_FOLDERS):
            return f"{CHECKSUMS} lists no files of a checkpoint"
        files = _checksums(directory)
        changed = [name for name, checksum in recorded.items() if files.get(name) != checksum]
        if changed:
            return f"{changed[0]} is missing or has changed since it was written"
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        return f"{CHECKSUMS} cannot be checked ({error})"
    return None


def _checksums(directory: Path) -> dict[str, list[int]]:
    """Return size and CRC-32 of the files below `directory`, except those in it, which Orbax edits later."""
    found = {}
    for path in sorted(path for path in directory.glob("*/**/*") if path.is_file()):
        checksum = 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                checksum = zlib.crc32(chunk, checksum)
        found[path.relative_to(directory).as_posix()] = [path.stat().st_size, checksum]
    return found
