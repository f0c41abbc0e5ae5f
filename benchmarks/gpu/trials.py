"""Measure candidates against a reference, one after another, saving each result before the next begins.

While one is measured others compile, in threads. The report lists the candidates in flight: if the process
ends, the next one runs each of these alone, and skips those that end it a second time.
"""

import math
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.command import one_line
from benchmarks.gpu import comparison, journal
from benchmarks.gpu.journal import BROKE, DEVICE_LOST, DeviceLostError
from benchmarks.gpu.order import Order

MEASURED, REFUSED, BROKEN = "measured", "refused", "broken"
"""Status of a row: has a time; does not run or has wrong results; ended the process."""

KEPT_CASES = 4
"""Number of cases whose arrays and expected results stay on the device."""

COMPILE_SECONDS = 60.0
"""Time limit to compile a candidate that was in flight when a process ended; kernels take seconds."""

UPDATE_SECONDS = 20.0
"""Interval at which the report is written if nothing else happens, for the supervisor."""

STATE = {"running": [], "suspects": [], "alone": None}
"""Additional keys of a report of trials: candidates in flight; those in flight when an earlier process ended;
the one of these that runs now."""


@dataclass(frozen=True)
class Trial:
    """One candidate of one case: a function and its arguments."""

    case: str
    candidate: str
    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    variant: Mapping[str, Any]
    """what differs from the other candidates of its case, such as block sizes"""
    columns: Mapping[str, Any]
    """additional columns of its row, besides case, candidate, variant, status and times"""
    carried: Mapping[int, int] = field(default_factory=dict)
    """argument -> the result that replaces it in the next call"""
    fill: Mapping[int, int] = field(default_factory=dict)
    """argument -> the value of its integers"""


@dataclass
class Trials:
    """A run over the candidates of `cases`; the first of each, the current choice, is the reference."""

    cases: Sequence[Sequence[Trial]]
    order: Order
    report: dict[str, Any]
    path: Path
    ends: float
    """time by `clock` after which no trial begins"""
    seconds: float
    """time for each candidate, besides compiling"""
    log: Callable[[str], None]
    stuck: float = math.inf
    """seconds after which a running candidate is given up and the process ended"""
    threads: int = 4
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._rows = {(row["case"], row["candidate"]): row for row in self.report["rows"]}
        taken = [(case, i) for case, trials in enumerate(self.cases) for i in range(len(trials))]
        self._index = {self._key(*each): each for each in taken}
        self._references: dict[int, Future[Any]] = {}
        self._ready: OrderedDict[int, tuple[list[jax.Array], Any]] = OrderedDict()
        self._ahead: deque[tuple[int, int, Future[Any]]] = deque()
        self._begun = self.clock()

    def run(self) -> bool:
        """Measure until all is done or time runs out; return whether all is done.

        Raises:
            DeviceLostError: only a new process can continue.
        """
        self._after_a_crash()
        self._pool = ThreadPoolExecutor(self.threads)
        try:
            self._suspects()
            while self._left() > 0:
                while len(self._ahead) < 2 * self.threads and (taken := self._next()) is not None:
                    self._mark(taken)
                    self._ahead.append((*taken, self._compile(*taken)))
                if not self._ahead:
                    return True
                if (ready := self._compiled(math.inf)) is not None:
                    self._try(*ready)
            return False
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self.report |= {"running": [], "alone": None}  # whatever ended this was caught
            journal.save(self.report, self.path)

    def _mark(self, *taken: tuple[int, int]) -> None:
        """Record the candidates in flight: those compiling or waiting, and `taken`."""
        keys = [self._key(case, i) for case, i, _ in self._ahead]
        self.report["running"] = [list(key) for key in (*keys, *(self._key(*each) for each in taken))]
        journal.save(self.report, self.path)

    def _after_a_crash(self) -> None:
        """Mark candidates in flight when an earlier process ended as suspects, or as broken."""
        report = self.report
        alone: Any = tuple(report["alone"] or ())
        waiting = [tuple(key) for key in (*report["suspects"], *report["running"])]
        report["suspects"] = [key for key in waiting if key in self._index and key not in self._rows]
        report |= {"alone": None, "running": []}
        if alone in self._index and alone not in self._rows:
            self._keep(*self._index[alone], status=BROKEN, reason=BROKE)

    def _suspects(self) -> None:
        """Run the suspects of an earlier process, one at a time."""
        while self.report["suspects"] and self._left() > 0:
            key = self.report["alone"] = self.report["suspects"].pop(0)
            journal.save(self.report, self.path)
            case, i = self._index[key]
            if not self._lacks_reference(case, i):
                self._ahead.append((case, i, self._compile(case, i)))
                if (ready := self._compiled(COMPILE_SECONDS)) is not None:
                    self._try(*ready)
                elif self._left() > 0:
                    reason = f"did not compile within {COMPILE_SECONDS:g} s, alone"
                    self._keep(case, i, status=BROKEN, reason=reason)
                self._ahead.clear()
            self.report["alone"] = None

    def _next(self) -> tuple[int, int] | None:
        """Return the next (case, candidate) without a row."""
        while (taken := self.order.take()) is not None:
            row = self._rows.get(self._key(*taken))
            if row is not None:
                self.order.learn(*taken, _ratio(row))
            elif not self._lacks_reference(*taken):
                return taken
        return None

    def _lacks_reference(self, case: int, i: int) -> bool:
        """Return whether the case's reference does not run; a row with that reason is then added."""
        row = self._rows.get(self._key(case, 0))
        if i == 0 or row is None or row["status"] == MEASURED:
            return False
        self._keep(case, i, status=REFUSED, reason="nothing to compare with: the current choice does not run")
        return True

    def _compile(self, case: int, i: int) -> "Future[Any]":
        """Trace a candidate now and compile it in a thread, together with the case's reference, once."""
        if i > 0 and case not in self._references:
            self._compile(case, 0)
        if i == 0 and case in self._references:
            return self._references[case]
        trial = self.cases[case][i]
        try:
            lowered = jax.jit(trial.function, donate_argnums=tuple(trial.carried)).lower(*trial.arguments)
        except Exception as error:  # tracing and lowering raise all kinds
            future: Future[Any] = Future()
            future.set_exception(error)
        else:
            future = self._pool.submit(lowered.compile)
        if i == 0:
            self._references[case] = future
        return future

    def _compiled(self, seconds: float) -> tuple[int, int, "Future[Any]"] | None:
        """Take the first candidate that is compiled together with its reference; None after a timeout."""
        ends = min(self.ends, self.clock() + seconds)
        while (left := ends - self.clock()) > 0:
            waiting = set()
            for each in self._ahead:
                case, _, future = each
                if not (unfinished := {x for x in (future, self._references[case]) if not x.done()}):
                    self._ahead.remove(each)
                    return each
                waiting |= unfinished
            if not wait(waiting, min(left, UPDATE_SECONDS), FIRST_COMPLETED).done:
                journal.save(
                    self.report, self.path
                )  # an update for the supervisor: some take long to compile
        return None

    def _try(self, case: int, i: int, future: "Future[Any]") -> None:
        """Measure a compiled candidate and keep its row."""
        if self._lacks_reference(case, i):
            return
        trial = self.cases[case][i]
        try:
            compiled, reference = future.result(), self._references[case].result()
            with self._watchdog(case, i):
                difference, reference_seconds, seconds = self._measure(case, trial, compiled, reference)
        except Exception as error:  # it does not fit this GPU; others may
            try:
                journal.check_device(error)
            except DeviceLostError:
                self._keep(case, i, status=BROKEN, reason=f"the device was lost: {one_line(error)[:500]}")
                raise
            self._keep(case, i, status=REFUSED, reason=one_line(error)[:500])
            return
        if difference > comparison.AGREEMENT:
            reason = f"results differ by {difference:.2g} of the largest"
            self._keep(case, i, status=REFUSED, reason=reason)
        else:
            self._keep(case, i, status=MEASURED, seconds=seconds, reference_seconds=reference_seconds)

    def _measure(
        self, case: int, trial: Trial, compiled: Callable[..., Any], reference: Callable[..., Any]
    ) -> tuple[float, float, float]:
        """Return the difference of the results, and seconds of reference and candidate, in turns."""
        if case in self._ready:
            self._ready.move_to_end(case)
        else:
            arrays = comparison.example(trial.arguments, trial.fill)
            self._ready[case] = arrays, _once(reference, arrays, trial.carried)
            if len(self._ready) > KEPT_CASES:
                self._ready.popitem(last=False)
        arrays, expected = self._ready[case]
        difference = comparison.disagreement(expected, _once(compiled, arrays, trial.carried))
        if difference > comparison.AGREEMENT:
            return difference, math.nan, math.nan
        functions = [reference] if compiled is reference else [reference, compiled]
        calls = [comparison.repeatedly(function, arrays, trial.carried) for function in functions]
        times = comparison.measure(calls, self.seconds)
        return difference, times[0], times[-1]

    def _keep(self, case: int, i: int, **found: Any) -> None:
        """Add a row and save."""
        trial = self.cases[case][i]
        names = {"case": trial.case, "candidate": trial.candidate}
        row = {**names, **trial.columns, "variant": dict(trial.variant), **found}
        self.report["rows"].append(row)
        self._rows[self._key(case, i)] = row
        self.order.learn(case, i, _ratio(row))
        self._mark()
        what = found.get("reason")
        if row["status"] == MEASURED:
            what = f"{found['seconds'] * 1e6:.1f} us, {_ratio(row):.2f}x"
        self.log(f"[{self.clock() - self._begun:6.1f} s] {trial.case}: {what}  {trial.candidate}")

    @contextmanager
    def _watchdog(self, case: int, i: int) -> Iterator[None]:
        """End this process if the block takes too long: nothing else stops a hanging kernel."""
        timer = threading.Timer(min(self.stuck, threading.TIMEOUT_MAX), self._hangs, (case, i))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _hangs(self, case: int, i: int) -> None:
        self.report["alone"] = None
        self._keep(case, i, status=BROKEN, reason=f"did not end within {self.stuck:g} s")
        os._exit(DEVICE_LOST)

    def _left(self) -> float:
        return self.ends - self.clock()

    def _key(self, case: int, i: int) -> tuple[str, str]:
        return self.cases[case][i].case, self.cases[case][i].candidate


def _once(compiled: Callable[..., Any], arrays: Sequence[jax.Array], carried: Mapping[int, int]) -> Any:
    """Return the results of one call on copies, which it may overwrite."""
    arguments = [jnp.copy(x) if i in carried else x for i, x in enumerate(arrays)]
    return jax.block_until_ready(compiled(*arguments))


def _ratio(row: Mapping[str, Any]) -> float | None:
    """Return the time over the reference's; None without a time."""
    return row["seconds"] / row["reference_seconds"] if row["status"] == MEASURED else None
