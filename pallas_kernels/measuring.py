"""Shared code of the commands that measure on a GPU: flags, supervision, resuming a report."""

import dataclasses
import math
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from pallas_kernels import journal, launch, supervisor
from pallas_kernels.checks import expect
from pallas_kernels.journal import DEVICE_LOST, DeviceLostError
from pallas_kernels.order import Order
from pallas_kernels.trials import MEASURED, STATE, Trial, Trials

HANG_SECONDS = 30.0
"""Limit for a candidate, arrays and samples included, before it is given up; kernels take milliseconds."""


@dataclass(frozen=True, kw_only=True)
class MeasuringFlags:
    """Flags of every measuring command."""

    out: Path
    """Directory for the report, which is written after each measurement."""
    minutes: float = 9.0
    """Time limit of this command, after which it ends with the results so far."""
    resume: bool = False
    """Continue the report in --out: keep its measurements, skip candidates that ended a process."""
    seconds: float = 0.2
    """Time to measure each candidate, besides compiling."""
    quick: bool = False
    """Use tiny sizes and few candidates, to test the command itself."""
    interpret: bool = False
    """Run the kernels in the interpreter, on a machine without a GPU; only with --quick."""
    stuck: float = 120.0
    """Seconds without an update of the report after which the measuring process is replaced."""
    until: float | None = None
    """Set by the supervising process: when the measuring process ends, in seconds since 1970."""

    def check(self) -> None:
        """Raise ValueError for an invalid value."""
        for name in ("minutes", "seconds", "stuck"):
            expect(getattr(self, name) > 0, f"--{name}", getattr(self, name), "a positive number")
        expect(not self.interpret or self.quick, "--interpret", True, "--quick, the interpreter is slow")


def run(
    name: str,
    flags: MeasuringFlags,
    argv: Sequence[str] | None,
    cases: Callable[[], Sequence[Sequence[Trial]]],
    cannot_run: Callable[[], str | None],
) -> int:
    """Measure the candidates of `cases` into ``NAME.json``, in a process that this one supervises.

    Args:
        name: name of the command's module; its report is ``NAME.json`` in --out.
        argv: words that `flags` were parsed from.
        cases: called in the measuring process.
        cannot_run: called there, too; returns why nothing can be measured here, or None.

    Returns:
        The exit status: 1 if nothing could be measured, 124 if something had to be killed at the end.

    Raises:
        ValueError: nothing can be measured here, or --out holds another run's report.
    """
    argv = [word for word in (sys.argv[1:] if argv is None else argv) if word != "--resume"]
    path = flags.out / f"{name}.json"
    fresh = f"a directory without {path.name}; --resume continues the existing one"
    expect(flags.resume or not path.exists(), "--out", str(flags.out), fresh)
    flags.out.mkdir(parents=True, exist_ok=True)
    module = f"pallas_kernels.{name}"
    if flags.until is not None:
        return _work(name, flags, shlex.join(["python", "-m", module, *argv]), cases, cannot_run, path)
    command = [sys.executable, "-m", module, *argv]
    stuck = math.inf if flags.interpret else flags.stuck
    return supervisor.watch(command, path, stuck, log, flags.resume, 60 * flags.minutes)


def _work(name: str, flags: MeasuringFlags, command: str, cases: Any, cannot_run: Any, path: Path) -> int:
    with launching(flags.interpret):
        if reason := cannot_run():
            raise ValueError(reason)
        report, listed = _report(name, flags, command, path), cases()
        order = Order([[trial.variant for trial in trials] for trials in listed])
        count = sum(map(len, listed))
        log(f"{count} candidates of {len(listed)} cases, first {order.first} current choices and neighbours")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # One core launches the kernels that are measured, the others compile.
        threads = max(1, min(8, cores - 1))
        limits = {"stuck": math.inf if flags.interpret else HANG_SECONDS, "threads": threads}
        ends = flags.until or math.inf
        trials = Trials(listed, order, report, path, ends, flags.seconds, log, **limits)
        try:
            report["complete"] = trials.run()
        except KeyboardInterrupt:
            return 130
        except DeviceLostError as error:
            log(f"the device is lost: {error}")
            os._exit(DEVICE_LOST)  # a normal exit may wait for the device
    journal.save(report, path)
    statuses = [row["status"] for row in report["rows"]]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
    log(f"{counts or 'nothing measured'} of {count}; wrote {path}")
    log(f"in a checkout of the source, `python -m pallas_kernels.adopt {flags.out}` adds it to the tables")
    return 0 if MEASURED in statuses else 1


def _report(name: str, flags: MeasuringFlags, command: str, path: Path) -> dict[str, Any]:
    """Return a new report, or the existing one."""
    names = [field.name for field in dataclasses.fields(flags)]
    settings = {key: getattr(flags, key) for key in names if key not in ("out", "resume", "until")}
    fresh = {"benchmark": name, "schema": journal.SCHEMA, "complete": False, "command": command}
    fresh |= {"machine": journal.machine(), "settings": settings, **STATE, "rows": []}
    if not (flags.resume and path.exists()):
        return fresh
    old = journal.load(path, [name])
    for part, keys in (("machine", ("device", "jax")), ("settings", ("quick", "interpret"))):
        for key in keys:
            was, now = old[part].get(key), fresh[part][key]
            expect(was == now, f"{key} of {path}", was, f"{now!r}, as now: these times cannot be compared")
    return old | {"complete": False}


@contextmanager
def launching(interpret: bool) -> Iterator[None]:
    """Launch kernels inside, in the interpreter if `interpret`, without jax's warning at every lowering.

    jax 0.11 warns that the Triton backend of Pallas will be removed; see docs/kernels.md.
    """
    with warnings.catch_warnings(), launch.interpreted() if interpret else nullcontext():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        yield


def backend() -> str:
    """Return the platform of the first device, such as "gpu", or why there is none."""
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # jax 0.10 asserts that JAX_PLATFORMS has one
        return str(error) or "none"


def no_gpu() -> str | None:
    """Return why there is no GPU to measure on, or None."""
    if launch.is_interpreted() or (found := backend()) == "gpu":
        return None
    return f"needs a GPU, and jax found only {found}"


def log(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)
