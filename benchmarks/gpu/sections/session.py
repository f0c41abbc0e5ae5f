"""Manage one run on the GPU: its clock, its report on disk after every step, and recovery from a crash.

A kernel that never ran before may end the process, or the device's context. So a step records in the report
what it is about to run (`running`); a later process that finds this entry knows what broke the last one,
skips it with that reason, and continues (`resume`).
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from based_jax.command import one_line
from benchmarks.gpu import journal
from benchmarks.gpu.journal import DeviceLostError, check_device, finite
from benchmarks.gpu.sections.targets import summary

UPDATE_SECONDS = 20.0
"""While only compilers work, the report is written this often."""

COMPILE_SECONDS = 300.0
"""A compiler that takes longer counts as hanging, and the watching process gets no more signals."""


class UnavailableError(RuntimeError):
    """An optional dependency is missing: not a failure."""


@dataclass
class Session:
    """The state of one run. Rows are dicts; each names its section, step and candidate."""

    report: dict[str, Any]
    path: Path | None
    minutes: float
    log: Callable[[str], None]
    quick: bool = False
    """sizes that take a second on a CPU, and one sample"""
    interpret: bool = False
    """kernels run in the interpreter"""
    clock: Callable[[], float] = time.monotonic
    begun: float = field(init=False)
    spent: float = field(init=False)
    """seconds of earlier processes of the same run"""
    section: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.begun, self.spent = self.clock(), self.report["elapsed_seconds"]

    @property
    def elapsed(self) -> float:
        """Return the seconds since this process began."""
        return self.clock() - self.begun

    def left(self) -> float:
        """Return the seconds until the run must end."""
        return 60 * self.minutes - self.elapsed

    def say(self, text: str) -> None:
        """Print a line of progress with the seconds since the start."""
        self.log(f"[{self.elapsed:6.1f} s] {self.section}: {text}" if self.section else text)

    def save(self) -> None:
        """Write the current report."""
        self.report |= {
            "elapsed_seconds": round(self.spent + self.elapsed, 1),
            "summary": summary(self.report["rows"]),
        }
        if self.path is not None:
            journal.save(self.report, self.path)

    def add(self, **row: Any) -> None:
        """Keep a row and save. Numbers that are not finite become None, as JSON has none."""
        self.report["rows"].append(finite({"section": self.section, **row}))
        self.save()

    def skip(self, step: str, what: str, reason: str) -> None:
        """Keep the reason why there is no number."""
        self.add(step=step, what=what, status="skipped", reason=reason)
        self.say(f"{step}: {what} skipped, {reason}")

    def fail(self, step: str, what: str, reason: str, ours: bool) -> None:
        """Keep the reason of a failure, which if `ours` gives exit status 1."""
        self.add(step=step, what=what, status="failed", reason=reason[:500], ours=ours)
        self.say(f"{step}: {what} FAILED, {reason[:160]}")

    @contextmanager
    def guarded(self, step: str, what: str, ours: bool = True, runs: bool = True) -> Iterator[None]:
        """Turn errors inside into a row, and if `ours` into exit status 1; a lost device raises.

        With `runs` False, the report keeps what it says is running.

        Raises:
            DeviceLostError: the device has stopped working.
        """
        before = self.report["running"]
        if runs:
            self.running(step, what)
        try:
            yield
        except Exception as error:  # compilers and devices raise all kinds; other cases still run
            if isinstance(error, DeviceLostError):
                raise
            if isinstance(error, UnavailableError):
                self.skip(step, what, str(error))
            else:
                self.running(step, what)  # what is to blame if the device is lost
                check_device(error)
                self.fail(step, what, one_line(error), ours)
        self.report["running"] = before

    def running(self, step: str, what: str) -> None:
        """Record what is about to run."""
        self.report["running"] = [self.section, step, what]
        self.save()

    def wait(self, futures: Iterable[Future[Any]]) -> None:
        """Wait for compilations, signalling progress: a model may compile longer than a kernel may run."""
        ends, futures = self.clock() + COMPILE_SECONDS, list(futures)
        while wait(futures, UPDATE_SECONDS).not_done:
            if self.clock() < ends:
                self.save()

    def broken(self, step: str, what: str) -> bool:
        """Return whether this ended an earlier process."""
        return [self.section, step, what] in self.report["broken"]


@dataclass(frozen=True)
class Step:
    """A part of a section that runs as a whole; a later process does not run it again."""

    name: str
    run: Callable[[Session], Any] | None = None
    """does everything; None for a comparison of `candidates`"""
    candidates: Callable[[Session], Sequence[Any]] | None = None
    """lists what is timed against each other, see `stopwatch`"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """further columns of the rows of the candidates"""
    urgent: bool = False
    """whether it comes before all others, measured before or not"""
    together: int = 5
    """steps of its section whose candidates compile together, before the first of them is timed"""
    needs_memory: bool = False
    """whether it runs in another process, for which this one must leave the device's memory"""


def resume(path: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the report of an earlier process, or `fresh`; the case that ended the process is `broken`."""
    try:
        old = json.loads(path.read_text())
    except (OSError, ValueError):
        return fresh
    if old.get("benchmark") != fresh["benchmark"] or old.get("schema") != fresh["schema"]:
        return fresh
    if old["running"]:
        old["broken"].append(old["running"])
    # Unfinished steps run again from their beginning.
    old["rows"] = [row for row in old["rows"] if [row["section"], row["step"]] in old["done"]]
    return old | {"running": None, "complete": False}
