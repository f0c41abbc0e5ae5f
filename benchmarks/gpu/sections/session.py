"""Manage the process of one section: its clock, its rows on disk as they come, and recovery from a crash.

A kernel that never ran before may end the process, or the device's context. So the journal names what is
about to run. If that is the last line when a process starts, it ended the previous one: it gets a row with
that reason, and is left out.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from based_jax.command import one_line
from benchmarks.gpu import journal
from benchmarks.gpu.journal import BEGUN, DONE

BROKE = "the process ended, or the device was lost, while it ran"

STUCK_SECONDS = 180.0
"""A process without a new row for so long ends itself."""


class UnavailableError(RuntimeError):
    """An optional dependency is missing: not a failure."""


class DeviceLostError(RuntimeError):
    """The device no longer adds two numbers: only a new process can use it again."""


@dataclass
class Session:
    """The state of one section's run. Rows are dicts; each names its section, step and candidate."""

    section: str
    path: Path | None
    """the journal"""
    minutes: float
    log: Callable[[str], None]
    quick: bool = False
    """sizes that take a second on a CPU, and one sample"""
    interpret: bool = False
    """kernels run in the interpreter"""
    alive: Callable[[float], Any] = lambda seconds: None
    """ends the process if it is not called again within so many seconds"""
    clock: Callable[[], float] = time.monotonic
    begun: float = field(init=False)
    rows: list[dict[str, Any]] = field(init=False)
    """lines of the journal, also of earlier processes"""

    def __post_init__(self) -> None:
        self.begun, self.rows = self.clock(), [] if self.path is None else journal.lines(self.path)
        if self.rows and self.rows[-1]["status"] == BEGUN:
            self._append({**self.rows[-1], "status": "failed", "reason": BROKE})

    @property
    def elapsed(self) -> float:
        """Return the seconds since this process began."""
        return self.clock() - self.begun

    def left(self) -> float:
        """Return the seconds until the run must end."""
        return 60 * self.minutes - self.elapsed

    def say(self, text: str) -> None:
        """Print a line of progress with the seconds since the start."""
        self.log(f"[{self.elapsed:6.1f} s] {self.section}: {text}")

    def add(self, **row: Any) -> None:
        """Keep a row."""
        self._append({"section": self.section, **row})

    def begin(self, step: str, what: str = "all", ours: bool = True) -> None:
        """Record what is about to run."""
        self.add(step=step, what=what, status=BEGUN, ours=ours)

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

        With `runs` False, the journal keeps what it says is running.

        Raises:
            DeviceLostError: the device has stopped working.
        """
        if runs:
            self.begin(step, what, ours)
        try:
            yield
        except DeviceLostError:
            raise
        except UnavailableError as error:
            self.skip(step, what, str(error))
        except Exception as error:  # compilers and devices raise all kinds; other cases still run
            self.begin(step, what, ours)  # what is to blame if the device is lost
            check_device(error)
            self.fail(step, what, one_line(error), ours)

    def is_done(self, step: str) -> bool:
        """Return whether an earlier process ran the whole step."""
        return any(row["status"] == DONE and row["step"] == step for row in self.rows)

    def broken(self, what: str, step: str | None = None) -> bool:
        """Return whether this ended an earlier process, in any step by default."""
        blamed = (row for row in self.rows if row.get("reason") == BROKE and row["what"] == what)
        return any(step in (None, row["step"]) for row in blamed)

    def _append(self, row: Mapping[str, Any]) -> None:
        self.alive(STUCK_SECONDS)
        self.rows.append(dict(row))
        if self.path is not None:
            journal.append(row, self.path)


def require(op: str, implementation: str, *arrays: Any) -> None:
    """Check that an implementation of an op can run here, on these arrays if given.

    Raises:
        UnavailableError: it cannot; the message has the reason.
    """
    from based_jax import ops

    try:
        ops.implementation_for(op, *arrays, implementation=implementation)
    except ValueError as error:
        raise UnavailableError(str(error)) from None


def check_device(error: BaseException) -> None:
    """Check the device by a simple sum.

    Raises:
        DeviceLostError: the sum fails, so `error` destroyed the device's context.
    """
    import jax
    import jax.numpy as jnp

    try:
        answer = int(jax.block_until_ready(jnp.arange(4) + 1).sum())
    except RuntimeError:  # what the XLA runtime raises
        raise DeviceLostError(one_line(error)) from error
    if answer != 10:
        raise DeviceLostError(f"the device computes 1 + 2 + 3 + 4 = {answer} after {one_line(error)}")


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
    least: float = 0.0
    """seconds that it needs; with less time left it waits for `--resume`"""
    together: int = 5
    """steps of its section whose candidates compile together, before the first of them is timed"""
