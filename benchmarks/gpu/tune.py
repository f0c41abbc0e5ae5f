"""`tune`: measure the variants of each kernel on this GPU.

Each candidate takes turns with the block sizes in use; candidates whose results differ are rejected.
`python -m benchmarks adopt` adds the fastest ones to the tuning tables.
"""

import dataclasses
import math
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import journal, supervisor
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases import taylor_attention as attention
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.journal import DEVICE_LOST, DeviceLostError
from benchmarks.gpu.launching import backend, launching
from benchmarks.gpu.trials import MEASURED, STATE, Trials
from pallas_kernels import is_interpreted
from pallas_kernels.checks import expect

HEADLINE = "K16 V64 bfloat16"
"""The most important shape: a head of Based-360M."""

KERNELS = ("outputs", "dq", "dk", "dv", "key_sums", "query_sums")
"""Kernels of attention, the most important first."""

STUCK_SECONDS = 120.0
"""Seconds without an update of the report after which the measuring process is replaced."""


@dataclass(frozen=True)
class Tune:
    """Measure the variants of the kernels on this GPU and write all measurements to DIR/tune.json.

    There are some 4,700 variants of 146 shapes. The block sizes in use and those that differ from them in one
    field come first (some 980, starting with the headline shape), then those that differ in two, and so on.
    """

    out: Path
    """Directory for the report, which is written after each measurement."""
    minutes: float = 9.0
    """Time limit of this command, after which it ends with the results so far."""
    resume: bool = False
    """Continue the report in --out: keep its measurements, skip candidates that ended a process."""
    quick: bool = False
    """Use tiny sizes and few candidates, to test the command itself."""
    interpret: bool = False
    """Run the kernels in the interpreter, on a machine without a GPU; only with --quick."""
    until: float | None = None
    """Set by the supervising process: when the measuring process ends, in seconds since 1970."""
    op: str | None = None
    """Only this folder of kernels, as "taylor_step"."""
    match: str = ""
    """Only cases whose name contains this."""

    def run(self, command: str) -> int:
        """Measure, in a process that this one supervises.

        Returns:
            The exit status: 1 if nothing could be measured, 124 if something had to be killed at the end.

        Raises:
            ValueError: a flag has a wrong value, nothing can be measured here, or --out has another run's
                report.
        """
        expect(self.minutes > 0, "--minutes", self.minutes, "a positive number")
        expect(not self.interpret or self.quick, "--interpret", True, "--quick, the interpreter is slow")
        expect(self.op in (None, *catalog.OPS), "--op", self.op, f"one of {', '.join(catalog.OPS)}")
        path = self.out / "tune.json"
        fresh = f"a directory without {path.name}; --resume continues the existing one"
        expect(self.resume or not path.exists(), "--out", str(self.out), fresh)
        self.out.mkdir(parents=True, exist_ok=True)
        if self.until is not None:
            return _work(self, command, path)
        words = [sys.executable, *(word for word in shlex.split(command)[1:] if word != "--resume")]
        stuck = math.inf if self.interpret else STUCK_SECONDS
        status = supervisor.watch(words, path, stuck, _log, self.resume, 60 * self.minutes)
        if status == supervisor.TIME_OVER and path.exists():  # what was running broke nothing
            journal.save(journal.load(path, ["tune"]) | {"running": []}, path)
        return status


def no_gpu() -> str | None:
    """Return why there is no GPU to measure on, or None."""
    if is_interpreted() or (found := backend()) == "gpu":
        return None
    return f"needs a GPU, and jax found only {found}"


def _work(flags: Tune, command: str, path: Path) -> int:
    with launching(flags.interpret):
        if reason := no_gpu():
            raise ValueError(reason)
        report, listed = _report(flags, command, path), cases(flags)
        count = sum(map(len, listed))
        _log(f"{count} candidates of {len(listed)} cases")
        try:
            report["complete"] = Trials(report, path, flags.until or math.inf, _log).run(listed)
        except KeyboardInterrupt:
            return 130
        except DeviceLostError as error:
            _log(f"the device is lost: {error}")
            os._exit(DEVICE_LOST)  # a normal exit may wait for the device
        finally:
            journal.save(report | {"running": []}, path)
    statuses = [row["status"] for row in report["rows"]]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
    _log(f"{counts or 'nothing measured'} of {count}; wrote {path}")
    _log(f"`python -m benchmarks adopt --reports {flags.out}` adds it to the tables")
    return 0 if MEASURED in statuses else 1


def _report(flags: Tune, command: str, path: Path) -> dict[str, Any]:
    """Return a new report, or the existing one."""
    names = [field.name for field in dataclasses.fields(flags)]
    settings = {key: getattr(flags, key) for key in names if key not in ("out", "resume", "until")}
    fresh = {"benchmark": "tune", "schema": journal.SCHEMA, "complete": False, "command": command}
    fresh |= {"machine": journal.machine(), "settings": settings, **STATE, "rows": []}
    if not (flags.resume and path.exists()):
        return fresh
    old = journal.load(path, ["tune"])
    for part, keys in (("machine", ("device", "jax")), ("settings", ("quick", "interpret"))):
        for key in keys:
            was, now = old[part].get(key), fresh[part][key]
            expect(was == now, f"{key} of {path}", was, f"{now!r}, as now: these times cannot be compared")
    return old | {"complete": False}


def cases(flags: Tune) -> list[list[Case]]:
    """Return the candidates of each case, the current choice first; the most important cases first."""
    found = catalog.cases(flags.match) if not flags.quick else quick(flags.match)
    wanted = [case for case in found if case.default and flags.op in (None, case.op)]
    listed = [candidates(case, flags.quick) for case in sorted(wanted, key=rank)]
    listed = [cases for cases in listed if len(cases) > 1]
    expect(len(listed) > 0, "--match", flags.match, f"part of the name of a case of {flags.op or 'any op'}")
    return listed


QUICK = attention.Sizes(batch=1, length=130, heads=1, block=64)


def quick(match: str) -> list[Case]:
    """Return two kernels on a tiny size."""
    cases = attention.cases([(16, 64, "bfloat16")], QUICK)
    return [case for case in cases if case.kernel in ("outputs", "dv") and match in case.name][:2]


def candidates(case: Case, quick: bool) -> list[Case]:
    """Return the case itself, then the other variants on its shape: two of them if `quick`."""
    if not quick:
        return catalog.candidates(case)
    return [case, *(x for x in attention.candidates(case, QUICK) if x.variant != case.variant)][:3]


def rank(case: Case) -> tuple[int, int]:
    """Return a sort key: lower is measured earlier."""
    if case.op == "taylor_attention" and case.shape.startswith(HEADLINE):
        return ("packed" in case.shape, KERNELS.index(case.kernel))
    if case.op != "taylor_attention":
        return (2, 0)
    return (4 if case.on_request else 3, 0)


def _log(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)
